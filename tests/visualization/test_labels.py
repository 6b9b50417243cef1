from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from PIL import ImageColor

from captioner.visualization.labels import (
    GATE_COLOUR,
    LEGEND_HEIGHT,
    PROBABILITY_COLOUR,
    TRACK_COLOUR,
    WORD_LABEL_HEIGHT,
    caption_note,
    draw_legend,
    draw_word_label,
)
from captioner.visualization.overlay import PixelPage
from captioner.visualization.style import (
    LEGEND_PHOTO,
    OverlayStyle,
    colour_table,
)
from captioner.visualization.typography import WARNING


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


def bar_lengths(image):
    """Length in pixels of the blue, the amber and the unfilled parts of the bars."""
    pixels = np.asarray(image)
    colours = [ImageColor.getrgb(name) for name in (PROBABILITY_COLOUR, GATE_COLOUR, TRACK_COLOUR)]
    return [int((pixels == colour).all(axis=2).sum(axis=1).max()) for colour in colours]


@pytest.mark.parametrize(("probability", "beta"), [(0.0, 1.0), (0.2, 0.7), (1.0, 0.0)])
def test_bars_are_as_long_as_their_values(word_caption, probability, beta):
    page = PixelPage(400, 120)
    draw_word_label(
        page, word_caption("dog", probability, beta), 0, left=10, top=0, width=300, size=20
    )
    image = page.image
    marked = (np.asarray(image) == ImageColor.getrgb(WARNING)).all(axis=2).any()
    assert marked == (probability < 0.15), "the sign of an unsure word"
    blue, amber, _ = bar_lengths(image)
    full = round(300 - 1.1 * 20 - 3.7 * 20) + 1
    assert blue == pytest.approx(probability * full, abs=1)
    assert amber == pytest.approx(beta * full, abs=1)


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


def test_the_note_has_the_confidence_where_it_is_marked_and_flat_maps(make_caption):
    flat = make_caption((90, 70), ["a", "dog"], maps=np.full((2, 63), 1 / 63))
    note, warning = caption_note(flat)
    assert warning
    assert "evenly for every word: never above 1.0 × uniform" in note
    sharp = np.full((2, 63), 0.9 / 62)
    sharp[1, 5] = 0.1
    caption = make_caption((90, 70), ["a", "dog"], maps=sharp)
    assert caption_note(caption) == ("", False)
    for confidence, threshold, expected in (
        (0.31, None, ("Confidence 0.31", False)),
        (0.31, 0.3, ("Confidence 0.31 (a caption is marked below 0.30)", False)),
        (0.31, 0.5, ("Unsure caption: confidence 0.31 (a caption is marked below 0.50)", True)),
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
