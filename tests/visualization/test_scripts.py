"""Text of pictures in scripts that DejaVu Sans lacks, and from right to left."""

from __future__ import annotations

import matplotlib.font_manager
import pytest

from captioner.visualization.typography import font, is_right_to_left, wrap


def test_latin_greek_and_arabic_are_in_dejavu_sans() -> None:
    for text in ("a café", "β × ⌜", "مربع أخضر", ""):
        assert "DejaVu" in str(font(20, text=text).path)


def test_a_script_without_a_font_is_said_once_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(matplotlib.font_manager, "findSystemFonts", list)
    for _ in range(2):
        assert "DejaVu" in str(font(20, text="\U00013000").path)
    said = capsys.readouterr().err
    assert said.count("warning: no font on this machine has '\U00013000'") == 1
    assert "fonts-noto" in said


def test_the_direction_is_that_of_the_first_letter_that_has_one() -> None:
    assert is_right_to_left("3 قطط")
    assert is_right_to_left("שלום a")
    assert not is_right_to_left("a قط")
    assert not is_right_to_left("12, …")


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
