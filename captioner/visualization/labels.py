"""What stands under the pictures: a word with its probability and gate, and the colour legend.

Everything is drawn in multiples of one text size, so the same label serves every picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from captioner.visualization.heat import ticks
from captioner.visualization.look import Look
from captioner.visualization.overlay import cell_is_visible, colour_table, contour_levels
from captioner.visualization.typography import INK, MUTED, fit, font, one_line
from captioner.visualization.vector import Page, pen

if TYPE_CHECKING:
    from captioner.types import Caption

# Heights and widths in multiples of the text size.
WORD_LABEL_HEIGHT = 5.0
LEGEND_HEIGHT = 3.4
_WIDEST_BAR = 20.0
_LEGEND_WIDTH = 20.0

_TRACK = "#e6e9ee"
_PROBABILITY = "#2f6db3"  # blue and amber: told apart by every kind of colour vision
_GATE = "#c98a1b"
BAR_COLOURS = (_TRACK, _PROBABILITY, _GATE)


def draw_word_label(
    page: Page,
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
    draw = pen(page)
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
    page: Page, *, left: int, top: int, width: int, size: int, vmax: float, look: Look
) -> None:
    """Draw the scale of a look, from 0 to vmax, with ticks in multiples of uniform attention."""
    draw = pen(page)
    title, face = fit("attention, × uniform", width, size_px=size, smallest_px=size // 2)
    draw.text((left, top + size), title, fill=MUTED, font=face, anchor="ls")
    y0, y1 = top + round(1.45 * size), top + round(2.1 * size)
    ramp = Image.fromarray(np.repeat(_ramp(width, vmax, look)[None], y1 - y0, axis=0))
    page.paste(ramp, (left, y0, left + width, y1))
    for tick in ticks(vmax, at_most=max(2, round(width / (3 * size)))):
        x = left + round((width - 1) * tick / vmax)
        draw.line((x, y1, x, y1 + round(0.25 * size)), fill=MUTED, width=max(1, size // 12))
        # The first and last numbers stay within the bar's width.
        label, half = f"{tick:g}", font(size).getlength(f"{tick:g}") / 2
        centre = min(max(x, left + half), left + width - half)
        draw.text((centre, y1 + 1.25 * size), label, fill=INK, font=font(size), anchor="ms")


def _ramp(width: int, vmax: float, look: Look) -> np.ndarray:
    """Colours from 0 to vmax, uint8 [width, 3]: what is below the threshold is pale."""
    heat = np.linspace(0, vmax, width)
    levels = np.linspace(0, 255, width).round().astype(int)
    below = heat < look.threshold
    if look.style == "mask":
        kept = 1 - look.opacity * (1 - np.where(below, 0, levels) / 255)
        return np.repeat((255 * kept).round()[:, None], 3, axis=1).astype(np.uint8)
    colours = colour_table(look.colour_map)[levels].astype(float)
    if look.style == "contour":  # the lines, and nothing between them
        lines = np.array(contour_levels(vmax))
        lines = lines[lines >= look.threshold]
        shown = np.zeros(width, dtype=bool)
        places = ((width - 1) * lines / vmax).round().astype(int)
        thick = max(1, width // 120)
        for place in places:
            shown[max(0, place - thick) : place + thick + 1] = True
        below = ~shown
    colours[below] += 0.85 * (255 - colours[below])
    return colours.round().astype(np.uint8)


def footer_height(captions: Sequence[Caption], width: int, *, size: int) -> int:
    """Height that draw_footer needs."""
    return _footer_places(captions, width, size)[2]


def _footer_places(captions: Sequence[Caption], width: int, size: int) -> tuple[int, int, int]:
    """Where the signs begin, from the left and from the top, and the height of all."""
    lines = round(1.7 * size) * len(_key(captions))
    if not any(caption.words for caption in captions):
        return 0, 0, lines
    legend = round(LEGEND_HEIGHT * size)
    legend_width = round(_LEGEND_WIDTH * size)
    if width >= 2 * (legend_width + 2 * size):
        return legend_width + 4 * size, 0, max(legend, lines)
    return 0, legend + size, legend + size + lines


def draw_footer(
    page: Page,
    captions: Sequence[Caption],
    *,
    left: int,
    top: int,
    width: int,
    size: int,
    vmax: float,
    look: Look,
) -> None:
    """The colour legend and the meaning of the signs: side by side, or stacked where narrow.

    captions: those on the picture. size: of the text, in pixels.
    """
    across, down, _ = _footer_places(captions, width, size)
    worded = any(caption.words for caption in captions)
    if worded:
        bar = round(_LEGEND_WIDTH * size)
        draw_legend(page, left=left, top=top, width=bar, size=size, vmax=vmax, look=look)
    draw = pen(page)
    indent = round(1.6 * size) if worded else 0
    for number, (sign, meaning) in enumerate(_key(captions)):
        baseline = top + down + size + round(1.7 * size) * number
        x = left + across
        draw.text((x, baseline), sign, fill=INK, font=font(size, bold=True), anchor="ls")
        text, face = fit(meaning, width - across - indent, size_px=size, smallest_px=size // 2)
        draw.text((x + indent, baseline), text, fill=MUTED, font=face, anchor="ls")


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
