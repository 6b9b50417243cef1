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
from chromium import Watched, until
from PIL import Image

import captioner.visualization
from captioner.types import Geometry
from captioner.visualization import OverlayStyle, viewer_script
from captioner.visualization.labels import _key, caption_note
from captioner.visualization.overlay import word_overlay
from captioner.visualization.style import CONTOUR_LEVELS, scale_position

FOLDER = Path(captioner.visualization.__file__).parent
SITE = "http://viewer.test/"
# What the pages of `captioner serve` allow.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
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
def photo(width=640, height=480):
    """Smooth colours with noise: what a photo has, and what a wrong formula would miss."""
    rng = np.random.default_rng(5)
    y, x = np.mgrid[:height, :width]
    planes = [128 + 100 * np.sin(x / 61 + 2), 128 + 100 * np.cos(y / 47), (x + y) % 256]
    pixels = np.stack(planes, axis=-1) + rng.normal(0, 12, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


@pytest.fixture
def open_viewer(browser):
    """Open a viewer of this content under the policy; returns the page, already painted."""
    contexts = []

    def open_it(content, **options):
        file = io.BytesIO()
        photo().save(file, format="PNG")
        answers = {
            "": ("text/html", INDEX),
            "start.js": ("text/javascript", START),
            "viewer.js": ("text/javascript", viewer_script()),
            "viewer.css": ("text/css", (FOLDER / "viewer.css").read_text()),
            "content.json": ("application/json", json.dumps(content)),
            "photo.png": ("image/png", file.getvalue()),
        }

        def answer(route):
            kind, body = answers[route.request.url.removeprefix(SITE)]
            headers = {"Content-Security-Policy": POLICY}
            route.fulfill(content_type=kind, body=body, headers=headers)

        context = browser.new_context(**options)
        contexts.append(context)
        context.route("**/*", answer)
        watched = Watched(context)
        watched.page.goto(SITE)
        until(watched.page, "window.viewer !== undefined")
        watched.page.evaluate("viewer.ready.then(() => null)")
        return watched

    yield open_it
    for context in contexts:
        context.close()


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
    picture = word_overlay(photo(), caption, index, OverlayStyle(**settings))
    return np.asarray(picture, dtype=int)


WHOLE = Geometry(640, 480, 0, 0, 640, 480)
GEOMETRIES = {
    "squash": WHOLE,
    "photo larger than drawn": Geometry(1280, 960, 0, 0, 1280, 960),
    "letterbox": Geometry(640, 480, 0, -80, 640, 640),
    "crop": Geometry(640, 480, 60, 40, 400, 390),
    "flip": Geometry(640, 480, 10, -30, 600, 540, flipped=True),
}


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
        difference = np.abs(shown - by_python(caption, index, smooth=smooth))
        assert difference.max() <= 3, kind
        assert difference.mean() < 0.1, kind
        # The check could fail: another word is far away.
        other = by_python(caption, (index + 1) % 3, smooth=smooth)
        assert np.abs(shown - other).mean() > 2, kind


def test_every_style_is_the_same_in_the_browser(open_viewer, make_caption):
    caption = make_caption((640, 480), WORDS)
    page = open_viewer(content(caption)).page
    usual = by_python(caption, 1)
    for settings in (
        {"opacity": 0.4},
        {"threshold": 2.0},
        {"kind": "contour"},
        {"kind": "contour", "threshold": 2.5, "colour_map": "cividis"},
        {"kind": "mask"},
        {"kind": "mask", "threshold": 1.5, "opacity": 0.9},
        {"kind": "colour"},
        {"kind": "colour", "threshold": 2.0},
        {"kind": "colour", "opacity": 0.4, "colour_map": "cividis"},
    ):
        style = OverlayStyle(**settings)
        display = {"style": style.kind, "threshold": style.threshold, "opacity": style.opacity}
        display["colourMap"] = style.colour_map
        page.evaluate(f"Object.assign(viewer.display, {json.dumps(display)}); viewer._choose()")
        ours = by_python(caption, 1, **settings)
        difference = np.abs(painted(page, 1) - ours)
        # On an edge, of a threshold or between two lines, rounding may turn a pixel.
        assert (difference.max(axis=-1) > 4).mean() < 0.001, settings
        assert difference.mean() < 0.4, settings
        assert np.abs(ours - usual).mean() > 1, settings


def test_the_cell_and_the_paths_of_hard_attention_are_where_python_draws_them(
    open_viewer, make_caption
):
    caption = make_caption((640, 480), WORDS, geometry=GEOMETRIES["flip"], hard=True)
    page = open_viewer(content(caption)).page
    # The same up to the antialiasing of nothing: boxes are whole pixels.
    difference = np.abs(painted(page, 2) - by_python(caption, 2)).max(axis=-1)
    assert (difference > 3).mean() < 0.0005
    without = np.abs(painted(page, 2) - by_python(replace(caption, cells=None), 2)).max(axis=-1)
    assert (without > 3).mean() > 0.0015

    paths = np.random.default_rng(1).integers(0, 63, (8, 3))
    caption = replace(caption, cells=None, paths=paths)
    page = open_viewer(content(caption)).page
    # A browser smooths the edges of discs and lines, Pillow does not.
    difference = np.abs(painted(page, 2) - by_python(caption, 2)).max(axis=-1)
    without = np.abs(painted(page, 2) - by_python(replace(caption, paths=None), 2)).max(axis=-1)
    assert (difference > 80).mean() < 0.4 * (without > 80).mean()


def test_marks_on_an_elongated_photo_are_as_thin_as_those_of_python(open_viewer, make_caption):
    maps = np.full((3, 14 * 14), 0.2 / 195)
    maps[:, 104] = 0.8
    size = (640, 43)
    caption = make_caption(size, WORDS, maps=maps, rows=14, columns=14)
    captions = [caption, replace(caption, cells=np.array([104] * 3))]
    file = io.BytesIO()
    photo(*size).save(file, format="PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    page = open_viewer(content(*captions) | {"photo": url}).page
    for place, one in enumerate(captions, start=1):
        page.get_by_label(f"model {place}").check()
        ours = np.asarray(word_overlay(photo(*size), one, 2, OverlayStyle()), dtype=int)
        assert (np.abs(painted(page, 2) - ours).max(axis=-1) > 3).mean() < 0.0005


def test_flat_and_unsure_captions_say_so(open_viewer, make_caption):
    flat = make_caption((640, 480), WORDS, maps=np.full((3, 63), 1 / 63))
    flat = replace(flat, log_probs=np.log(np.array([0.5, 0.1, 0.9], dtype=np.float32)))
    page = open_viewer(content(flat)).page
    assert page.locator(".cv-note").inner_text() == caption_note(flat)
    unsure = [word.locator(".cv-text.cv-unsure").count() for word in page.locator(".cv-word").all()]
    assert unsure == [0, 1, 0]
    page = open_viewer(content(make_caption((640, 480), WORDS))).page
    assert page.locator(".cv-note").is_hidden()


def test_an_unsure_caption_has_the_note_of_the_sheet_in_a_comparison_too(open_viewer, make_caption):
    sure, unsure = (
        replace(make_caption((640, 480), WORDS), confidence=value, confidence_threshold=0.4)
        for value in (0.7, 0.29)
    )
    page = open_viewer(content(sure, unsure)).page
    note = page.locator("p.cv-note")
    assert note.is_hidden()
    assert page.locator(".cv-models label").all_inner_texts() == [
        f"model 1 {sure.text}",
        f"model 2 {sure.text} (unsure)",
    ]
    page.get_by_label("model 2").check()
    assert note.inner_text() == caption_note(unsure) == "Unsure caption: confidence 0.29"
    page.evaluate("viewer.show(1)")
    assert note.is_visible()


def test_the_key_names_the_marks_that_the_page_draws(open_viewer, make_caption):
    soft = make_caption((640, 480), WORDS)
    flat = make_caption((640, 480), WORDS, maps=np.full((3, 63), 1 / 63))
    hard = make_caption((640, 480), WORDS, hard=True)
    outside = replace(hard, geometry=GEOMETRIES["letterbox"], cells=np.array([0, 20, 30]))
    paths = replace(hard, paths=np.random.default_rng(1).integers(0, 63, (8, 3)))
    captions = [
        replace(caption, log_probs=np.log(np.array([0.5, 0.1, 0.9], dtype=np.float32)))
        for caption in (soft, flat, hard, outside, paths)
    ]
    page = open_viewer(content(*captions)).page
    for place, caption in enumerate(captions, start=1):
        page.get_by_label(f"model {place}").check()
        signs = page.locator(".cv-key-sign").all()
        shown = [(sign.locator("b").inner_text(), sign.inner_text()) for sign in signs]
        of_sheet = [each for each in _key([caption]) if each[0] not in ("p", "β")]
        assert shown == [(sign, sign + meaning) for sign, meaning in of_sheet]
    assert len(shown) == 4


def test_only_what_has_an_effect_on_the_style_is_offered(open_viewer, make_caption):
    page = open_viewer(content(make_caption((640, 480), WORDS))).page
    page.get_by_text("Display", exact=True).click()
    for style, colours, strength in (
        ("light", False, True),
        ("colour", True, True),
        ("contour", True, False),
        ("mask", False, True),
    ):
        page.get_by_label("Show as").select_option(style)
        selects = page.locator(".cv-display .cv-field select").all()
        assert [select.is_visible() for select in selects] == [True, colours], style
        assert page.get_by_label("Strength").is_visible() == strength, style


def test_layers_and_heads_can_be_chosen(open_viewer, make_caption):
    rng = np.random.default_rng(2)
    heads = rng.dirichlet(np.full(63, 0.2), size=(3, 2, 4)).reshape(3, 2, 4, 7, 9)
    heads = heads.astype(np.float32)
    cells = rng.integers(0, 63, (3, 4))
    caption = replace(
        make_caption((640, 480), WORDS, maps=heads[:, -1].mean(1)), heads=heads, cells=cells
    )
    page = open_viewer(content(caption)).page
    assert np.abs(painted(page, 1) - by_python(caption, 1)).mean() < 0.1
    for layer, head in [(1, None), (1, 3), (2, 4)]:
        page.get_by_label("Layer").select_option(str(layer))
        page.get_by_label("Head").select_option("" if head is None else str(head))
        difference = np.abs(painted(page, 1) - by_python(caption.of_head(layer, head), 1))
        assert difference.mean() < 0.1

    caption = replace(caption, paths=rng.integers(0, 63, (5 * 4, 3)))
    page = open_viewer(content(caption)).page
    for layer, head in [(1, None), (1, 3), (2, None), (2, 4)]:
        page.get_by_label("Layer").select_option(str(layer))
        page.get_by_label("Head").select_option("" if head is None else str(head))
        paths = caption.of_head(layer, head).paths
        shown = page.evaluate("viewer.caption.paths || null")
        assert shown == (None if paths is None else paths.tolist())


def test_models_can_be_switched_and_the_alternative_text_follows(open_viewer, make_caption):
    first, second = make_caption((640, 480), WORDS), make_caption((640, 480), ["a", "cat"])
    page = open_viewer(content(first, second)).page
    assert page.get_by_role("img", name="two dogs <b>play</b>").count() == 1
    page.get_by_label("model 2").check()
    assert page.get_by_role("img", name="a cat", exact=True).count() == 1
    assert page.locator(".cv-word").count() == 2
    assert np.abs(painted(page, 1) - by_python(second, 1)).mean() < 0.1


def test_words_are_text_whatever_they_hold(open_viewer, make_caption):
    watched = open_viewer(content(make_caption((640, 480), WORDS)))
    assert watched.page.locator(".cv-text").all_inner_texts() == WORDS
    assert watched.page.locator("#place b b").count() == 0


def test_hover_lays_the_map_on_the_photo_and_only_there(open_viewer, make_caption):
    watched = open_viewer(content(make_caption((640, 480), WORDS)))
    page = watched.page
    before = shot(page)
    page.locator(".cv-word").nth(1).hover()
    until(page, "viewer.canvas.dataset.word === '1'")
    box = page.locator(".cv-stage").bounding_box()
    difference = np.abs(shot(page) - before).max(axis=-1)
    x0, y0 = round(box["x"]), round(box["y"])
    stage = difference[y0 : y0 + round(box["height"]), x0 : x0 + round(box["width"])]
    assert (stage > 10).mean() > 0.8
    difference[y0 - 1 : y0 + round(box["height"]) + 1, : x0 + round(box["width"]) + 1] = 0
    panel = page.locator(".cv-panel").bounding_box()
    difference[:, round(panel["x"]) - 10 :] = 0  # where the word is marked and described
    assert difference.max() == 0
    page.mouse.move(1, 1)
    until(page, "viewer.canvas.hidden")
    assert watched.complaints == []
    assert watched.asked_of_others(SITE) == []


def shot(page):
    return np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB"), dtype=int)


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


def test_from_right_to_left_the_arrow_keys_go_where_they_point(open_viewer, make_caption):
    page = open_viewer(content(make_caption((640, 480), ["كلب", "في", "الثلج"]))).page
    lefts = [box["x"] for box in (word.bounding_box() for word in page.locator(".cv-word").all())]
    assert lefts == sorted(lefts, reverse=True)
    page.keyboard.press("Tab")
    for key, place in [("ArrowLeft", 1), ("ArrowLeft", 2), ("ArrowRight", 1)]:
        page.keyboard.press(key)
        until(page, "viewer.frame === null")
        assert page.evaluate("viewer.shown") == place


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


def test_the_photo_is_bare_while_it_is_pressed(open_viewer, make_caption):
    page = open_viewer(content(make_caption((640, 480), WORDS))).page
    painted(page, 0)
    page.locator(".cv-stage").hover()
    page.mouse.down()
    assert page.evaluate("viewer.canvas.hidden")
    page.mouse.up()
    assert not page.evaluate("viewer.canvas.hidden")


def test_a_caption_without_words_and_a_missing_photo_are_reported(open_viewer, make_caption):
    page = open_viewer(content(make_caption((640, 480), []))).page
    assert "no words" in page.locator(".cv-description").inner_text()
    page.evaluate("viewer.image.src = 'data:image/png;base64,AAAA'")
    until(page, "viewer.description.textContent === 'The photo cannot be shown.'")


def test_the_legend_of_contours_shows_their_levels_and_nothing_between(open_viewer, make_caption):
    caption = make_caption((640, 480), WORDS)
    page = open_viewer(content(caption, style="contour", threshold=2.5)).page
    alpha = np.array(
        page.evaluate(
            "Array.from(viewer.legend.querySelector('canvas').getContext('2d')"
            ".getImageData(0, 0, 256, 1).data).filter((_, i) => i % 4 === 3)"
        )
    )
    begins = np.flatnonzero(np.diff((alpha == 255).astype(int), prepend=0) == 1)
    assert len(begins) == len(CONTOUR_LEVELS) - 1
    expected = [255 * scale_position(level) for level in CONTOUR_LEVELS[1:]]
    np.testing.assert_allclose(begins, expected, atol=4)
