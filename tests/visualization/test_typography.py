from __future__ import annotations

import itertools

import matplotlib.font_manager
import numpy as np
import pytest
from PIL import Image, ImageDraw

from captioner.visualization.overlay import PixelPage
from captioner.visualization.typography import fit, font, one_line, wrap

LONG = "pneumonoultramicroscopicsilicovolcanoconiosis"


def test_line_breaks_and_control_characters_are_taken_out():
    assert one_line(" a\tdog\r\n\x00runs\u2028fast ") == "a dog runs fast"
    assert one_line("l'été 東京") == "l'été 東京"


def test_text_shrinks_before_it_is_cut():
    text, face = fit("dog", 200, size_px=20, smallest_px=10)
    assert (text, face.size) == ("dog", 20)
    natural = font(20).getlength(LONG)
    text, face = fit(LONG, natural * 0.7, size_px=20, smallest_px=10)
    assert text == LONG
    assert 10 < face.size < 20
    assert face.getlength(text) <= natural * 0.7 < font(int(face.size) + 1).getlength(text)
    text, face = fit(LONG, natural * 0.3, size_px=20, smallest_px=10)
    assert face.size == 10
    assert text.endswith("…")
    assert face.getlength(text) <= natural * 0.3


@pytest.mark.parametrize("width", [80, 150, 400, 5000])
def test_wrapped_text_keeps_every_word_and_no_line_is_too_wide(width):
    text = "a man in a black shirt rides a brown horse on the beach"
    lines = wrap(text, font(20), width, max_lines=20)
    assert " ".join(lines) == text
    assert all(font(20).getlength(line) <= width for line in lines)
    for line, following in itertools.pairwise(lines):
        assert font(20).getlength(f"{line} {following.split()[0]}") > width


def test_latin_greek_and_arabic_are_in_dejavu_sans() -> None:
    for text in ("a café", "β × ⌜", "مربع أخضر", ""):
        assert font(20, text=text).getname() == ("DejaVu Sans", "Book")
    assert font(20, bold=True).getname() == ("DejaVu Sans", "Bold")


def test_a_script_without_a_font_is_said_once_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(matplotlib.font_manager, "findSystemFonts", list)
    for _ in range(2):
        for character in "\U00013000\U00013001":
            assert "DejaVu" in str(font(20, text=character).path)
    said = capsys.readouterr().err
    assert said.count("warning: no font on this machine has Egyptian letters") == 1
    assert said.count("warning") == 1
    assert "fonts-noto" in said


def test_lines_break_between_characters_of_scripts_without_spaces() -> None:
    face = font(20)
    width = face.getlength("一二三四") + 1
    lines = wrap("一二三四五六七八九", face, width, max_lines=5)
    assert "".join(lines) == "一二三四五六七八九"
    assert max(map(len, lines)) == 4
    assert wrap("one two three", face, face.getlength("one two"), max_lines=3) == [
        "one two",
        "three",
    ]


def test_text_is_drawn_as_pillow_draws_it() -> None:
    places = [(10, 40), (30.4, 40.25), (200.5, 90.75)]
    image, page = Image.new("RGB", (400, 120), "white"), PixelPage(400, 120)
    for pen in (ImageDraw.Draw(image), page):
        for place, anchor in zip(places, ("ls", "lm", "ms"), strict=True):
            pen.text(place, "Ågjp β", fill="#b3471e", font=font(30), anchor=anchor)
    np.testing.assert_array_equal(np.asarray(page.image), np.asarray(image))
