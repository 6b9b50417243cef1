"""Self-contained pages in a real browser, from a file and without a network."""

from __future__ import annotations

import re

import numpy as np
import pytest
from chromium import Watched, until
from PIL import Image

from captioner.visualization import OverlayStyle
from captioner.visualization.page import caption_page, report_page

NASTY = ['<script>alert("1")</script>', "</script><b>", "&amp;", "β"]


@pytest.fixture
def opened(browser, tmp_path):
    """Open a page from a file, offline."""

    def open_it(text, **options):
        file = tmp_path / "page.html"
        file.write_text(text, encoding="utf-8")
        watched = Watched(browser.new_context(offline=True, **options))
        watched.page.goto(file.as_uri())
        return watched

    return open_it


def picture(width=200, height=120):
    pixels = np.random.default_rng(0).integers(0, 255, (height // 20, width // 20, 3))
    small = Image.fromarray(pixels.astype(np.uint8))
    return small.resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_page_from_a_file_works_without_a_network(opened, make_caption, theme):
    captions = [
        ("soft", make_caption((200, 120), ["two", "dogs"])),
        ("hard", make_caption((200, 120), ["a", "cat"], hard=True)),
    ]
    text = caption_page(picture(), captions, name="dogs & cats.jpg", style=OverlayStyle("mask"))
    watched = opened(text, color_scheme=theme)
    page = watched.page
    page.evaluate("viewers[0].ready.then(() => null)")
    assert page.title() == "two dogs"
    assert page.get_by_role("heading").inner_text() == "dogs & cats.jpg"
    assert page.get_by_role("img", name="two dogs", exact=True).count() == 1
    page.locator(".cv-word").nth(1).hover()
    until(page, "viewers[0].canvas.dataset.word === '1' && !viewers[0].canvas.hidden")
    page.get_by_label("hard").check()
    assert page.locator(".cv-text").all_inner_texts() == ["a", "cat"]
    assert page.evaluate("viewers[0].display.style") == "mask"
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    lightness = int(re.findall(r"\d+", background)[0])
    assert lightness > 200 if theme == "light" else lightness < 60
    assert watched.complaints == []
    assert watched.asked_of_others("file://") == []
    assert len(watched.requests) - sum(u.startswith("data:") for u in watched.requests) == 1


def test_words_cannot_break_out_of_the_page(opened, make_caption):
    text = caption_page(
        picture(), [("<i>m</i>", make_caption((200, 120), NASTY))], name='"><script>1</script>'
    )
    watched = opened(text)
    assert watched.page.locator(".cv-text").all_inner_texts() == NASTY
    assert watched.page.evaluate("document.scripts.length") == 2
    assert watched.complaints == []


def test_a_page_holds_the_photo_within_its_limit_and_says_so(make_caption):
    large = Image.new("RGB", (3200, 800), "red")
    text = caption_page(large, [("m", make_caption((3200, 800), ["a"]))], name="x")
    assert "Photo of 3200 × 800 pixels, here 1600 × 400." in text
    assert len(text) < 120_000


def test_the_report_has_its_tables_as_text() -> None:
    tables = [
        ("Scores", ["", "score"], [["CIDEr", "0.611"], ["<b>", "not computed"]]),
        ("Captions", ["", ""], [["num captions", "7"]]),
    ]
    page = report_page(tables, {}, title="a <report>")
    assert re.findall("<h2>(.*?)</h2>", page) == ["Scores", "Captions"]
    assert '<th scope="row">CIDEr</th><td>0.611</td>' in page
    assert "&lt;b&gt;" in page
    assert "a &lt;report&gt;" in page
    assert page.count("<thead>") == 1, "columns without names have no heading"
