"""Sheets, also of several models and as pages of vectors; pictures of single words; animations."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from photos import detailed_photo, noise
from PIL import Image, ImageColor

from captioner.visualization import (
    OverlayStyle,
    attention_sheet,
    caption_gif,
    comparison_sheet,
    word_images,
)
from captioner.visualization.overlay import PixelPage, resize_captioned, word_overlay
from captioner.visualization.sheet import (
    GATE_COLOUR,
    KEY,
    LEGEND_HEIGHT,
    PROBABILITY_COLOUR,
    WORD_LABEL_HEIGHT,
    caption_note,
    draw_footer,
    draw_legend,
    draw_word_label,
    vector_sheet,
)
from captioner.visualization.style import LEGEND_PHOTO, Layers, colour_table
from captioner.visualization.typography import WARNING
from captioner.visualization.word_pictures import word_names

WORDS = "a brown dog".split()
SENTENCE = (
    "a very long description of a scene where several people are standing around a table that is "
    "covered with food and bottles of wine today"
).split()
MARGIN = 40  # the sheet's own is wider; letters may reach a little into it
MAGENTA = (255, 0, 255)  # is nowhere on a sheet but in a photo of that colour


def panels_of(sheet):
    """Boxes of the panels of a sheet whose photo is magenta, in reading order."""
    pixels = np.asarray(sheet)
    rows, columns = np.nonzero((pixels == MAGENTA).all(axis=2))
    width, height = int(np.ptp(columns)) + 1, int(np.ptp(rows)) + 1
    assert len(rows) == width * height  # a whole rectangle
    ink = (pixels < 255).any(axis=2)
    corners = ink[1:, 1:] & ~ink[:-1, 1:] & ~ink[1:, :-1]  # white above and to the left
    boxes = []
    for top, left in (np.argwhere(corners) + 1).tolist():
        box = left, top, left + width, top + height
        inked = ink[top : box[3], left : box[2]]
        # Marks on the panels are white, so most of a panel is ink, and corners lie inside it too.
        inside = any(x0 <= left < x1 and y0 <= top < y1 for x0, y0, x1, y1 in boxes)
        if not inside and inked.shape == (height, width) and inked.mean() > 0.9:
            boxes.append(box)
    return boxes


@pytest.mark.parametrize(
    ("shape", "count"),
    [((320, 240), 0), ((2000, 1500), 25), ((1000, 100), 9), ((100, 1000), 25), ((1, 1), 1)],
)
def test_a_sheet_has_white_margins_and_a_photo_in_its_own_shape(make_caption, shape, count):
    photo = Image.new("RGB", shape, MAGENTA)
    sheet = attention_sheet(photo, make_caption(shape, SENTENCE[:count]), "colour")
    assert 600 <= sheet.width <= 2100
    assert 300 <= sheet.height <= 4500
    pixels = np.asarray(sheet)
    margin = np.ones(pixels.shape[:2], dtype=bool)
    margin[MARGIN:-MARGIN, MARGIN:-MARGIN] = False
    assert pixels[margin].min() == 255
    rows, columns = np.nonzero((pixels == MAGENTA).all(axis=2))
    width, height = np.ptp(columns) + 1, np.ptp(rows) + 1
    exact = max(width, height) * min(shape) / max(shape)
    assert abs(min(width, height) - max(1, exact)) <= 1


@pytest.mark.parametrize("kind", ["focus", "colour"])
def test_panels_are_the_words_overlays_in_reading_order(make_caption, kind):
    photo, count = Image.new("RGB", (400, 300), MAGENTA), 7
    inner = np.random.default_rng(count).dirichlet(np.full(35, 0.3), size=count)
    maps = np.pad(inner.reshape(count, 5, 7), ((0, 0), (1, 1), (1, 1)))
    caption = make_caption((400, 300), SENTENCE[:count], maps=maps)
    style = OverlayStyle(kind, opacity=0.9)
    sheet = attention_sheet(photo, caption, style)
    boxes = panels_of(attention_sheet(photo, caption, "colour"))
    assert len(boxes) == 1 + count
    size = boxes[0][2] - boxes[0][0], boxes[0][3] - boxes[0][1]
    small = resize_captioned(photo, caption.geometry, size)
    for index, box in enumerate(boxes[1:]):
        expected = word_overlay(Layers(small, style), caption, index)
        np.testing.assert_array_equal(np.asarray(sheet.crop(box)), np.asarray(expected))


def test_long_words_stay_in_their_column_and_long_captions_wrap(make_caption):
    photo = Image.new("RGB", (400, 300), MAGENTA)
    caption = make_caption((400, 300), ["antidisestablishmentarianism" * 9] * 5)
    sheet = attention_sheet(photo, caption, "colour")
    for box in panels_of(sheet):
        assert np.asarray(sheet.crop((box[2] + 2, box[1], box[2] + 22, box[3] + 70))).min() == 255
    tops = []
    for text in ("dog", " ".join(SENTENCE), " ".join(SENTENCE * 40)):
        tops.append(panels_of(attention_sheet(photo, replace(caption, text=text), "colour"))[0][1])
    assert tops[0] < tops[1] < tops[2] < 500


def test_a_comparison_has_a_row_a_model_and_wraps_long_captions(make_caption):
    photo = Image.new("RGB", (300, 200), (120, 120, 120))
    short, long = make_caption(photo.size, SENTENCE[:4]), make_caption(photo.size, SENTENCE[:14])
    one = comparison_sheet(photo, [("soft", short)])
    two = comparison_sheet(photo, [("soft", short), ("hard", short)])
    assert two.width == one.width
    assert two.height > 1.2 * one.height
    wrapped = comparison_sheet(photo, [("soft", long)])
    assert wrapped.width < 2000
    assert wrapped.height > one.height + 150
    panorama = Image.new("RGB", (1600, 200))
    assert comparison_sheet(panorama, [("a", make_caption(panorama.size, SENTENCE))]).width < 2000


def test_a_page_of_vectors_has_the_photo_once_text_and_at_most_half_a_megabyte(make_caption):
    photo = detailed_photo(480, 640)
    y, x = np.mgrid[:9, :9]
    maps = [np.exp(-((x - i % 9) ** 2 + (y - i * 5 % 9) ** 2) / 6) for i in range(12)]
    maps = np.array([each / each.sum() for each in maps])
    caption = make_caption(photo.size, SENTENCE[:12], maps=maps, rows=9, columns=9)
    for kind in ("focus", "colour"):
        page = vector_sheet(photo, [("", caption)], kind)
        svg = page.to_bytes("svg").decode()
        assert len(svg) < 500_000, kind
        photos = [each for each in re.findall(r"base64,([^\"]*)", svg) if len(each) > 30_000]
        assert len(photos) <= 2, "the photo and its grey"
        assert "<!-- description -->" in svg
        assert len(page.to_bytes("pdf")) < 500_000, kind
    assert b"<svg" in vector_sheet(photo, [("soft", caption), ("hard", caption)]).to_bytes("svg")


def test_a_figure_shows_what_the_sheet_shows(make_caption):
    photo = detailed_photo(480, 640)
    caption = make_caption(photo.size, SENTENCE[:3])
    sheet = attention_sheet(photo, caption)
    figure = vector_sheet(photo, [("", caption)]).figure
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=144)
    shown = Image.open(file).convert("RGB")
    assert shown.size == pytest.approx(sheet.size, abs=1)
    small = [np.asarray(each.resize((120, 120)).convert("L"), float) for each in (sheet, shown)]
    assert np.abs(small[0] - small[1]).mean() < 6


@pytest.mark.parametrize("hard", [True, False])
def test_each_picture_is_the_overlay_at_the_photos_size_above_a_strip(make_caption, hard):
    photo = noise(400, 330)
    caption = make_caption((400, 330), WORDS, hard=hard)
    pictures = list(word_images(photo, caption))
    assert len(pictures) == len(WORDS)
    assert len({picture.size for picture in pictures}) == 1
    for index, picture in enumerate(pictures):
        expected = word_overlay(Layers(photo, OverlayStyle()), caption, index)
        assert picture.crop((0, 0, 400, 330)).tobytes() == expected.tobytes()
        assert (np.asarray(picture.crop((0, 330, *picture.size))) == 255).all(axis=2).mean() > 0.5
    first, second = (np.asarray(picture.crop((0, 330, *picture.size))) for picture in pictures[:2])
    assert (first != second).any()


@pytest.mark.parametrize(
    ("photo_size", "picture_size"),
    [
        ((640, 480), (640, 480)),
        ((2400, 1800), (2048, 1536)),
        ((8000, 800), (2048, 205)),
        ((1, 1), (320, 320)),
        ((64, 640), (64, 640)),
    ],
)
def test_a_picture_keeps_the_photos_shape_and_cuts_nothing_off(
    make_caption, photo_size, picture_size
):
    photo = Image.new("RGB", photo_size, "white")
    caption = make_caption(photo_size, ["antidisestablishmentarianism" * 3], maps=[np.eye(9)[:7]])
    (picture,) = word_images(photo, caption, OverlayStyle("mask", opacity=0.9))
    pixels = np.asarray(picture)
    painted = pixels[: picture_size[1]] < 255
    rows, columns = painted.any(axis=(1, 2)).sum(), painted.any(axis=(0, 2)).sum()
    assert (columns, rows) == picture_size
    assert picture.width == max(320, picture_size[0])
    strip = pixels[picture_size[1] :]
    assert (strip < 255).any()
    for edge in (strip[-4:], strip[:, :4], strip[:, -4:]):
        assert edge.min() == 255


def test_the_first_frame_of_a_gif_is_the_photo_as_large_as_in_the_others(make_caption):
    photo = Image.new("RGB", (80, 160), "red")
    photo.paste(detailed_photo(40, 80).point(lambda level: 200 + level // 5), (20, 40))
    with Image.open(io.BytesIO(caption_gif(photo, make_caption(photo.size, WORDS)))) as still:
        pixels = np.asarray(still.convert("RGB")).astype(int)
    assert (pixels[2, 2] == 255).all(), "white outside of the photo"
    red = (np.abs(pixels - (255, 0, 0)) < 9).all(axis=2)
    # All but the hairline along its border.
    assert (red.any(axis=0).sum(), red.any(axis=1).sum()) == (158, 318)


def test_a_gif_of_a_photo_with_detail_is_below_a_megabyte(make_caption):
    photo = detailed_photo(480, 640)
    content = caption_gif(photo, make_caption(photo.size, WORDS * 4))
    assert len(content) < 1_000_000
    with Image.open(io.BytesIO(content)) as animation:
        assert animation.n_frames == 13


@pytest.fixture
def word_caption(make_caption):
    """A caption of one word with this probability and gate."""

    def make(word, probability, beta):
        caption = make_caption((90, 70), [word])
        with np.errstate(divide="ignore"):
            log_probs = np.log(np.array([probability], dtype=np.float32))
        return replace(caption, log_probs=log_probs, beta=np.array([beta], dtype=np.float32))

    return make


def drawn_box(image):
    """Box (x0, y0, x1, y1) of everything that is not white."""
    ink = np.asarray(image.convert("RGB")).min(axis=2) < 255
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    return columns[0], rows[0], columns[-1] + 1, rows[-1] + 1


@pytest.mark.parametrize(("probability", "beta"), [(0.0, 1.0), (0.2, 0.7), (1.0, 0.0)])
def test_bars_are_as_long_as_their_values(word_caption, probability, beta):
    page = PixelPage(400, 120)
    draw_word_label(
        page, word_caption("dog", probability, beta), 0, left=10, top=0, width=300, size=20
    )
    pixels = np.asarray(page.image)
    marked = (pixels == ImageColor.getrgb(WARNING)).all(axis=2).any()
    assert marked == (probability < 0.15), "the sign of an unsure word"
    full = round(300 - 1.1 * 20 - 3.7 * 20) + 1
    for colour, value in ((PROBABILITY_COLOUR, probability), (GATE_COLOUR, beta)):
        length = (pixels == ImageColor.getrgb(colour)).all(axis=2).sum(axis=1).max()
        assert length == pytest.approx(value * full, abs=1)


@pytest.mark.parametrize("size", [15, 19, 56])
@pytest.mark.parametrize("word", ["", "a", "Ågjpqy", "antidisestablishmentarianism" * 4])
def test_a_label_stays_in_its_place(word_caption, word, size):
    width = 12 * size
    page = PixelPage(30 * size, 10 * size)
    draw_word_label(
        page, word_caption(word, 1e-4, 1.0), 0, left=size, top=size, width=width, size=size
    )
    x0, y0, x1, y1 = drawn_box(page.image)
    slack = math.ceil(size / 15)  # what letters reach beyond their advance width
    assert x0 >= size - slack
    assert y0 >= size
    assert x1 <= size + width + slack
    assert y1 <= size + math.ceil(WORD_LABEL_HEIGHT * size)


def test_a_key_is_wrapped_in_a_narrow_place_and_not_made_smaller(make_caption):
    page, captions = Mock(), [make_caption((9, 9), WORDS)]
    draw_footer(page, captions, OverlayStyle(), left=0, top=0, width=290, size=15)
    calls = page.text.call_args_list
    assert {call.kwargs["font"].size for call in calls} == {15}
    assert KEY["p"] in " ".join(call.args[1] for call in calls)


def test_an_unsure_caption_never_seems_as_sure_as_its_threshold(make_caption):
    caption = make_caption((9, 9), WORDS)
    for confidence, shown in (
        (0.3141, ["0.314", "0.315"]),
        (0.3149, ["0.31", "0.31"]),
        (0.3, ["0.30", "0.31"]),
    ):
        known = replace(caption, confidence=confidence, confidence_threshold=0.3149)
        assert known.confidence_digits == shown


def test_the_note_has_the_confidence_where_it_is_marked_and_flat_maps(make_caption):
    flat = make_caption((90, 70), ["a", "dog"], maps=np.full((2, 63), 1 / 63))
    note, warning = caption_note(flat)
    assert warning
    assert "evenly for every word: never above 1.0 × uniform" in note
    sharp = np.full((2, 63), 0.9 / 62)
    sharp[1, 5] = 0.1
    caption = make_caption((90, 70), ["a", "dog"], maps=sharp)
    mean = (caption.log_probs.sum() - 0.5) / 3  # of two words and the end
    note = (f"Log-probability {mean:.2f} a word", False)
    assert caption_note(replace(caption, end_log_prob=-0.5)) == note
    for confidence, threshold, expected in (
        (0.31, None, ("Confidence 0.31", False)),
        (0.31, 0.3, ("Confidence 0.31 (unsure below 0.30)", False)),
        (0.31, 0.5, ("Unsure caption: confidence 0.31 (unsure below 0.50)", True)),
    ):
        rated = replace(caption, confidence=confidence, confidence_threshold=threshold)
        assert caption_note(rated) == expected
    assert caption_note(make_caption((90, 70), [])) == ("", False)


def test_a_legend_shows_the_colour_map_from_end_to_end_in_its_place():
    page, width = PixelPage(500, 120), 20 * 19
    draw_legend(page, OverlayStyle("colour"), left=20, top=10, size=19)
    image = page.image
    x0, y0, x1, y1 = drawn_box(image)
    assert (x0, x1) == (20, 20 + width)
    assert y0 >= 10
    assert y1 <= 10 + math.ceil(LEGEND_HEIGHT * 19)
    table = colour_table("viridis")
    row = np.asarray(image)[10 + 19 * 2, 20 : 20 + width]
    grey = 0.299 * LEGEND_PHOTO[0] + 0.587 * LEGEND_PHOTO[1] + 0.114 * LEGEND_PHOTO[2]
    for place, level in ((0, 0), (-1, 255), (width // 2, 128)):
        np.testing.assert_allclose(row[place], 0.35 * grey + 0.65 * table[level], atol=4)


def test_words_become_file_names_that_every_system_takes() -> None:
    names = word_names("photo.jpg", ["a", "l'été", "../..", "", "<unk>", "x" * 99, "A\x00/b"])
    assert names == [
        "photo.jpg.01-a.png",
        "photo.jpg.02-l-été.png",
        "photo.jpg.03-word.png",
        "photo.jpg.04-word.png",
        "photo.jpg.05-unk.png",
        f"photo.jpg.06-{'x' * 32}.png",
        "photo.jpg.07-A-b.png",
    ]
