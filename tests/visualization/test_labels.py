from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image, ImageColor

from captioner.visualization.labels import (
    _GATE,
    _PROBABILITY,
    _TRACK,
    LEGEND_HEIGHT,
    WORD_LABEL_HEIGHT,
    _share,
    draw_legend,
    draw_word_label,
    ticks,
)
from captioner.visualization.look import Look
from captioner.visualization.overlay import colour_table


def drawn_box(image):
    """Box (x0, y0, x1, y1) of everything that is not white."""
    ink = np.asarray(image.convert("RGB")).min(axis=2) < 255
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    return columns[0], rows[0], columns[-1] + 1, rows[-1] + 1


def bar_lengths(image):
    """Length in pixels of the blue, the amber and the unfilled parts of the bars."""
    pixels = np.asarray(image)
    colours = [ImageColor.getrgb(name) for name in (_PROBABILITY, _GATE, _TRACK)]
    return [int((pixels == colour).all(axis=2).sum(axis=1).max()) for colour in colours]


@pytest.mark.parametrize("probability", [0.0, 0.2, 0.55, 1.0])
@pytest.mark.parametrize("beta", [0.0, 0.7, 1.0])
def test_bars_are_as_long_as_their_values(probability, beta):
    image = Image.new("RGB", (400, 120), "white")
    draw_word_label(
        image,
        left=10,
        top=0,
        width=300,
        size=20,
        word="dog",
        log_prob=math.log(probability) if probability else -math.inf,
        beta=beta,
    )
    blue, amber, _ = bar_lengths(image)
    full = round(300 - 1.1 * 20 - 3.3 * 20) + 1
    assert blue == pytest.approx(probability * full, abs=1)
    assert amber == pytest.approx(beta * full, abs=1)


def test_numbers_have_two_decimals_and_tiny_ones_are_not_nought():
    assert [_share(value) for value in (0.0, 0.001, 0.005, 0.314, 1.0)] == [
        "0.00",
        "<0.01",
        "0.01",
        "0.31",
        "1.00",
    ]


@pytest.mark.parametrize("size", [15, 19, 56])
@pytest.mark.parametrize("word", ["", "a", "Ågjpqy", "antidisestablishmentarianism" * 4])
def test_a_label_stays_in_its_place(word, size):
    width = 12 * size
    image = Image.new("RGB", (30 * size, 10 * size), "white")
    draw_word_label(
        image, left=size, top=size, width=width, size=size, word=word, log_prob=-9.0, beta=1.0
    )
    x0, y0, x1, y1 = drawn_box(image)
    slack = math.ceil(size / 15)  # what letters reach beyond their advance width
    assert x0 >= size - slack
    assert y0 >= size
    assert x1 <= size + width + slack
    assert y1 <= size + math.ceil(WORD_LABEL_HEIGHT * size)


@pytest.mark.parametrize("vmax", [4.0, 18.3, 91.0, 1234.5])
@pytest.mark.parametrize("width", [150, 400])
def test_a_legend_shows_the_colour_map_from_end_to_end_in_its_place(vmax, width):
    image = Image.new("RGB", (500, 120), "white")
    draw_legend(
        image, left=20, top=10, width=width, size=19, vmax=vmax, look=Look(colour_map="viridis")
    )
    x0, y0, x1, y1 = drawn_box(image)
    assert (x0, x1) == (20, 20 + width)
    assert y0 >= 10
    assert y1 <= 10 + math.ceil(LEGEND_HEIGHT * 19)
    table = colour_table("viridis")
    row = np.asarray(image)[10 + 19 * 2 - 3, 20 : 20 + width]
    np.testing.assert_array_equal(row[0], table[0])
    np.testing.assert_array_equal(row[-1], table[255])
    np.testing.assert_allclose(row[width // 2].astype(int), table[128], atol=3)


@pytest.mark.parametrize("at_most", [2, 3, 6, 12])
@pytest.mark.parametrize("vmax", [0.03, 1.0, 4.0, 7.999, 20.0, 91.2, 1e5])
def test_ticks_are_round_even_few_and_within_the_scale(vmax, at_most):
    found = ticks(vmax, at_most=at_most)
    assert 1 <= len(found) <= at_most
    assert found[0] == 0
    assert found[-1] <= vmax * (1 + 1e-9)
    if len(found) > 1:
        step = found[1]
        assert found == pytest.approx([step * count for count in range(len(found))])
        assert found[-1] + step > vmax
        assert f"{step:e}"[0] in "125"
    if at_most >= 3:
        assert len(found) >= 2
