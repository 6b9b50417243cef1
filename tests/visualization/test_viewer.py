"""The viewer in a real browser: it paints as overlay.py does, and each word can be reached."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tiny
from chromium import Watched, until
from photos import detailed_photo
from PIL import Image

import captioner.visualization
from captioner.types import Geometry
from captioner.visualization import OverlayStyle
from captioner.visualization.overlay import word_overlay
from captioner.visualization.page import viewer_script
from captioner.visualization.sheet import caption_note, sign_key
from captioner.visualization.style import Layers

FOLDER = Path(captioner.visualization.__file__).parent
SITE, OTHER = "http://viewer.test/", "http://other.test/"
# What the pages of `captioner serve` allow.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data: http://other.test; "
    "connect-src 'self'"
)
INDEX = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>Viewer</title>
<link rel="icon" href="data:,"><link rel="stylesheet" href="viewer.css"></head>
<body><main id="place"></main><script src="viewer.js"></script><script src="start.js"></script>
</body></html>"""
START = """fetch("content.json").then((answer) => answer.json()).then((content) => {
  window.viewer = new CaptionViewer(document.getElementById("place"), content);
});"""
WORDS = ["two", "dogs", "<b>play</b>"]


@cache
def photo_as_png():
    return tiny.encoded(detailed_photo(640, 480), "PNG", compress_level=1)


@pytest.fixture
def open_viewer(browser):
    """Open a viewer of this content under the policy; returns the page, already painted."""

    def open_it(content, **options):
        answers = {
            "": ("text/html", INDEX),
            "start.js": ("text/javascript", START),
            "viewer.js": ("text/javascript", viewer_script()),
            "viewer.css": ("text/css", (FOLDER / "viewer.css").read_text()),
            "content.json": ("application/json", json.dumps(content)),
            "photo.png": ("image/png", photo_as_png()),
        }

        def answer(route):
            kind, body = answers[route.request.url.removeprefix(SITE).removeprefix(OTHER)]
            headers = {"Content-Security-Policy": POLICY}
            route.fulfill(content_type=kind, body=body, headers=headers)

        context = browser.new_context(**options)
        context.route("**/*", answer)
        watched = Watched(context)
        watched.page.goto(SITE)
        until(watched.page, "window.viewer !== undefined")
        watched.page.evaluate("viewer.ready.then(() => null)")
        return watched

    return open_it


def content(*captions, **display):
    models = [{"name": f"model {i}", **c.to_dict(maps=True)} for i, c in enumerate(captions, 1)]
    return {"photo": "photo.png", "alt": captions[0].text, "models": models, "display": display}


def painted(page, index):
    """The canvas with the map of a word, as an array."""
    page.evaluate(f"viewer.show({index})")
    until(page, f"viewer.canvas.dataset.word === '{index}' && viewer.frame === null")
    url = page.evaluate("viewer.canvas.toDataURL('image/png')")
    file = io.BytesIO(base64.b64decode(url.partition(",")[2]))
    return np.asarray(Image.open(file).convert("RGB"), dtype=int)


def by_python(caption, index, **settings):
    picture = word_overlay(
        Layers(detailed_photo(640, 480), OverlayStyle(**settings)), caption, index
    )
    return np.asarray(picture, dtype=int)


WHOLE = Geometry(640, 480, 0, 0, 640, 480)
GEOMETRIES = {
    "squash": WHOLE,
    "photo larger than drawn": Geometry(1280, 960, 0, 0, 1280, 960),
    "letterbox": Geometry(640, 480, 0, -80, 640, 640),
    "crop": Geometry(640, 480, 60, 40, 400, 390),
    "flip": Geometry(640, 480, 10, -30, 600, 540, flipped=True),
}


def close_to(shown, ours):
    """Whether two pictures agree but for the rounding of a browser's blending, and edges."""
    difference = np.abs(shown - ours)
    return (difference.max(axis=-1) > 6).mean() < 0.004 and difference.mean() < 1.2


@pytest.mark.parametrize("smooth", [True, False])
def test_the_browser_paints_the_same_as_python(open_viewer, make_caption, smooth):
    captions = [
        make_caption((640, 480), WORDS, geometry=geometry) for geometry in GEOMETRIES.values()
    ]
    page = open_viewer(content(*captions, smooth=smooth)).page
    for place, (kind, caption) in enumerate(zip(GEOMETRIES, captions, strict=True), start=1):
        page.get_by_label(f"model {place}").check()
        index = place % 3
        shown = painted(page, index)
        assert close_to(shown, by_python(caption, index, smooth=smooth)), kind
        # The check could fail: another word is far away.
        assert not close_to(shown, by_python(caption, (index + 1) % 3, smooth=smooth)), kind


def test_every_style_is_the_same_in_the_browser(open_viewer, make_caption):
    caption = make_caption((640, 480), WORDS)
    page = open_viewer(content(caption)).page
    usual = by_python(caption, 1)
    for settings in (
        {"opacity": 0.4},
        {"threshold": 3.0},
        {"kind": "light"},
        {"kind": "light", "threshold": 1.5, "opacity": 0.9},
        {"kind": "contour"},
        {"kind": "mask"},
        {"kind": "colour", "threshold": 2.0},
        {"kind": "colour", "opacity": 0.4, "colour_map": "cividis"},
    ):
        style = OverlayStyle(**settings)
        display = {"style": style.kind, "threshold": style.threshold, "opacity": style.opacity}
        display["colourMap"] = style.colour_map
        page.evaluate(f"Object.assign(viewer.display, {json.dumps(display)}); viewer._choose()")
        ours = by_python(caption, 1, **settings)
        assert close_to(painted(page, 1), ours), settings
        assert np.abs(ours - usual).mean() > 1, settings


def test_the_marks_are_where_python_draws_them(open_viewer, make_caption):
    caption = make_caption((640, 480), WORDS, geometry=GEOMETRIES["flip"], hard=True)
    paths = np.random.default_rng(1).integers(0, 63, (8, 3))
    flat = replace(caption, maps=np.full_like(caption.maps, 1 / 63), cells=None)
    captions = [caption, replace(caption, cells=None), replace(flat, paths=paths)]
    page = open_viewer(content(*captions)).page
    for place, one in enumerate(captions, start=1):
        page.get_by_label(f"model {place}").check()
        ours, bare = by_python(one, 2), by_python(replace(one, cells=None, paths=None), 2)
        shown = painted(page, 2)
        # A browser smooths the edges of discs and slanted lines, Pillow does not.
        wrong = (np.abs(shown - ours).max(axis=-1) > 80).mean()
        assert wrong < 0.01, place
        if place != 2:
            assert wrong < 0.4 * (np.abs(shown - bare).max(axis=-1) > 80).mean(), place


def test_notes_and_unsure_words_are_those_of_the_sheet(open_viewer, make_caption):
    flat = make_caption((640, 480), WORDS, maps=np.full((3, 63), 1 / 63))
    flat = replace(flat, log_probs=np.log(np.array([0.5, 0.1, 0.9], dtype=np.float32)))
    sure, unsure = (
        replace(make_caption((640, 480), ["a", "cat"]), confidence=value, confidence_threshold=0.4)
        for value in (0.7, 0.29)
    )
    page = open_viewer(content(flat, sure, unsure)).page
    note = page.locator("p.cv-note")
    assert page.locator(".cv-text").all_inner_texts() == WORDS
    assert page.locator("#place b b").count() == 0, "words are text"
    assert page.locator(".cv-text.cv-unsure").all_inner_texts() == [WORDS[1]]
    assert page.get_by_role("img", name=flat.text).count() == 1
    assert page.locator(".cv-models label").all_inner_texts()[1:] == [
        "model 2 a cat",
        "model 3 a cat (unsure)",
    ]
    for place, caption in ((1, flat), (2, sure), (3, unsure)):
        page.get_by_label(f"model {place}").check()
        shown = note.inner_text(), "cv-warning" in note.get_attribute("class")
        assert shown == caption_note(caption)
    assert page.get_by_role("img", name="a cat", exact=True).count() == 1
    assert page.locator(".cv-word").count() == 2


def test_the_key_names_the_marks_that_the_page_draws(open_viewer, make_caption):
    soft = make_caption((640, 480), WORDS)
    flat = make_caption((640, 480), WORDS, maps=np.full((3, 63), 1 / 63))
    hard = make_caption((640, 480), WORDS, hard=True)
    paths = replace(hard, paths=np.random.default_rng(1).integers(0, 63, (8, 3)))
    captions = [
        replace(caption, log_probs=np.log(np.array([0.5, 0.1, 0.9], dtype=np.float32)))
        for caption in (soft, flat, hard, paths)
    ]
    page = open_viewer(content(*captions)).page
    for place, caption in enumerate(captions, start=1):
        page.get_by_label(f"model {place}").check()
        signs = page.locator(".cv-key-sign").all()
        shown = [(sign.locator("b").inner_text(), sign.inner_text()) for sign in signs]
        of_sheet = [each for each in sign_key([caption]) if each[0] not in ("p", "β")]
        assert shown == [(sign, sign + meaning) for sign, meaning in of_sheet]
    assert len(shown) == 3


def test_layers_and_heads_can_be_chosen(open_viewer, make_caption):
    rng = np.random.default_rng(2)
    heads = rng.dirichlet(np.full(63, 0.2), size=(3, 2, 4)).reshape(3, 2, 4, 7, 9)
    heads = heads.astype(np.float32)
    cells = rng.integers(0, 63, (3, 4))
    caption = replace(
        make_caption((640, 480), WORDS, maps=heads[:, -1].mean(1)), heads=heads, cells=cells
    )
    page = open_viewer(content(caption)).page
    assert close_to(painted(page, 1), by_python(caption, 1))
    for layer, head in [(1, None), (1, 3), (2, 4)]:
        page.get_by_label("Layer").select_option(str(layer))
        page.get_by_label("Head").select_option("" if head is None else str(head))
        assert close_to(painted(page, 1), by_python(caption.of_head(layer, head), 1))

    caption = replace(caption, paths=rng.integers(0, 63, (5 * 4, 3)))
    page = open_viewer(content(caption)).page
    for layer, head in [(1, None), (1, 3), (2, None), (2, 4)]:
        page.get_by_label("Layer").select_option(str(layer))
        page.get_by_label("Head").select_option("" if head is None else str(head))
        paths = caption.of_head(layer, head).paths
        shown = page.evaluate("viewer.caption.paths || null")
        assert shown == (None if paths is None else paths.tolist())


def test_the_keyboard_walks_through_the_words(open_viewer, make_caption):
    page = open_viewer(content(make_caption((640, 480), WORDS))).page

    def shown():
        until(page, "viewer.frame === null")
        return page.evaluate("viewer.canvas.hidden ? null : viewer.shown")

    assert shown() is None
    page.keyboard.press("Tab")
    assert shown() == 0
    for key, place in [
        ("ArrowRight", 1),
        ("End", 2),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("Home", 0),
    ]:
        page.keyboard.press(key)
        assert shown() == place
        assert page.evaluate("document.activeElement.textContent") == WORDS[place]
    page.keyboard.press("Escape")
    assert shown() is None
    page.keyboard.press("Enter")
    assert shown() == 0
    page.keyboard.press("Tab")  # one stop for all words: the next is the button
    assert page.evaluate("document.activeElement.textContent") == "Play"


def test_a_screen_reader_hears_each_word_with_its_figures(open_viewer, make_caption):
    maps = np.full((3, 63), 0.2 / 62)
    maps[0, 8], maps[1, 31] = 0.8, 0.8  # the upper right corner, the middle
    maps[2] = 1 / 63
    caption = make_caption((640, 480), WORDS, maps=maps)
    page = open_viewer(content(caption)).page
    assert page.get_by_role("toolbar").count() == 1
    names = [button.get_attribute("aria-label") for button in page.locator(".cv-word").all()]
    p, beta = np.exp(caption.log_probs), caption.beta
    wheres = ["attends most to the upper right, 50 times uniform"]
    wheres += ["attends most to the middle, 50 times uniform", "attention spread over the photo"]
    for name, word, i in zip(names, WORDS, range(3), strict=True):
        unsure = " (unsure)" if p[i] < 0.15 else ""
        assert name == f"{word}{unsure}: probability {p[i]:.2f}, gate {beta[i]:.2f}, {wheres[i]}"


def test_a_phone_shows_it_all_and_a_tap_is_enough(open_viewer, make_caption):
    words = "a dog and another dog play in the uncharacteristically deep snow".split()
    watched = open_viewer(
        content(make_caption((640, 480), words)),
        viewport={"width": 320, "height": 640},
        has_touch=True,
        is_mobile=True,
    )
    page = watched.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    page.locator(".cv-word").nth(4).tap()
    until(page, "viewer.canvas.dataset.word === '4' && !viewer.canvas.hidden")
    for word in page.locator(".cv-word").all():
        box = word.bounding_box()
        assert box["width"] >= 44
        assert box["height"] >= 44
    assert watched.complaints == []
