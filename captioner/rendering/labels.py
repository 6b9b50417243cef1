"""What stands under the pictures: a word with its probability and gate, and the colour legend.

Everything is drawn in multiples of one text size, so the same label serves every picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from captioner.rendering.heat import ticks
from captioner.rendering.overlay import ColourMap, cell_is_visible, colour_table
from captioner.rendering.typography import INK, MUTED, fit, font, one_line

if TYPE_CHECKING:
    from captioner.grid import Caption

# Heights and widths in multiples of the text size.
WORD_LABEL_HEIGHT = 5.0
LEGEND_HEIGHT = 3.4
_WIDEST_BAR = 20.0
_LEGEND_WIDTH = 20.0

_TRACK = "#e6e9ee"
_PROBABILITY = "#2f6db3"  # blue and amber: told apart by every kind of colour vision
_GATE = "#c98a1b"


def draw_word_label(
    image: Image.Image,
    *,
    left: int,
    top: int,
    width: int,
    size: int,
    word: str,
    log_prob: float,
    beta: float | None,
) -> None:
    """Draw a word over bars with numbers, 0 to 1: p, its probability, and β, its gate if any."""
    draw = ImageDraw.Draw(image)
    text, face = fit(one_line(word), width, size_px=round(1.5 * size), smallest_px=size, bold=True)
    draw.text((left, top + 1.95 * size), text, fill=INK, font=face, anchor="ls")
    width = min(width, round(_WIDEST_BAR * size))
    rows = [("p", math.exp(log_prob), _PROBABILITY)]
    if beta is not None:
        rows.append(("β", beta, _GATE))
    for row, (name, value, colour) in enumerate(rows):
        middle = top + round((3.1 + 1.3 * row) * size)
        draw.text((left, middle), name, fill=MUTED, font=font(size), anchor="lm")
        draw.text((left + width, middle), _share(value), fill=INK, font=font(size), anchor="rm")
        start, stop = left + round(1.1 * size), left + width - round(3.3 * size)
        y0, y1 = middle - round(0.24 * size), middle + round(0.24 * size)
        draw.rectangle((start, y0, stop, y1), fill=_TRACK)
        filled = round((stop - start + 1) * min(max(value, 0.0), 1.0))
        if filled:
            draw.rectangle((start, y0, start + filled - 1, y1), fill=colour)


def _share(value: float) -> str:
    return "<0.01" if 0 < value < 0.005 else f"{value:.2f}"


def draw_legend(
    image: Image.Image,
    *,
    left: int,
    top: int,
    width: int,
    size: int,
    vmax: float,
    colour_map: ColourMap,
) -> None:
    """Draw the colour scale, from 0 to vmax, with ticks in multiples of uniform attention."""
    draw = ImageDraw.Draw(image)
    title, face = fit("attention, × uniform", width, size_px=size, smallest_px=size // 2)
    draw.text((left, top + size), title, fill=MUTED, font=face, anchor="ls")
    y0, y1 = top + round(1.45 * size), top + round(2.1 * size)
    ramp = colour_table(colour_map)[np.linspace(0, 255, width).round().astype(int)]
    image.paste(Image.fromarray(np.repeat(ramp[None], y1 - y0, axis=0)), (left, y0))
    for tick in ticks(vmax, at_most=max(2, round(width / (3 * size)))):
        x = left + round((width - 1) * tick / vmax)
        draw.line((x, y1, x, y1 + round(0.25 * size)), fill=MUTED, width=max(1, size // 12))
        # The first and last numbers stay within the bar's width.
        label, half = f"{tick:g}", font(size).getlength(f"{tick:g}") / 2
        centre = min(max(x, left + half), left + width - half)
        draw.text((centre, y1 + 1.25 * size), label, fill=INK, font=font(size), anchor="ms")


def draw_footer(
    captions: Sequence[Caption], width: int, *, vmax: float, colour_map: ColourMap, size: int
) -> Image.Image:
    """The colour legend and the meaning of the signs: side by side, or stacked where narrow.

    captions: those on the picture. size: of the text, in pixels.
    """
    key = _key(captions)
    worded = any(caption.words for caption in captions)
    legend_width, line = round(_LEGEND_WIDTH * size), round(1.7 * size)
    left, top = 0, 0
    legend_height = 0
    if worded:
        legend_height = round(LEGEND_HEIGHT * size)
        if width >= 2 * (legend_width + 2 * size):
            left = legend_width + 4 * size
        else:
            top = legend_height + size
    height = max(legend_height, top + line * len(key))
    footer = Image.new("RGB", (width, height), "white")
    if worded:
        draw_legend(
            footer, left=0, top=0, width=legend_width, size=size, vmax=vmax, colour_map=colour_map
        )
    draw = ImageDraw.Draw(footer)
    indent = round(1.6 * size) if worded else 0
    for number, (sign, meaning) in enumerate(key):
        baseline = top + size + line * number
        draw.text((left, baseline), sign, fill=INK, font=font(size, bold=True), anchor="ls")
        room = width - left - indent
        text, face = fit(meaning, room, size_px=size, smallest_px=size // 2)
        draw.text((left + indent, baseline), text, fill=MUTED, font=face, anchor="ls")
    return footer


def _key(captions: Sequence[Caption]) -> list[tuple[str, str]]:
    """Signs on the sheet with their meanings."""
    if not any(caption.words for caption in captions):
        return [("", "The caption has no words, so there is no attention to show.")]
    key = [("p", "probability of the word, given the words before it")]
    if any(caption.beta is not None for caption in captions):
        key.append(("β", "gate: how much the word draws on the picture"))
    looked = [caption for caption in captions if caption.cells is not None]
    if looked:
        all_visible = all(
            cell_is_visible(caption, index)
            for caption in looked
            for index in range(len(caption.words))
        )
        beyond = "" if all_visible else " (no outline: outside the photo)"
        key.append(("□", f"cell looked at for the word{beyond}"))
    paths = [len(caption.paths) for caption in captions if caption.paths is not None]
    if paths:
        key.append(("●", f"cells of {max(paths)} sampled paths, with the steps to them"))
    return key
