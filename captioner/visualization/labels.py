"""Labels of the pictures in multiples of one text size: words with bars, the scale, the key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from captioner.visualization.overlay import PixelPage, peak
from captioner.visualization.style import (
    FLAT_BELOW,
    OCTAVES,
    PATH_COLOURS,
    PEAK_MARKED_FROM,
    SCALE_TICKS,
    UNSURE_PROBABILITY,
    OverlayStyle,
    scale_octaves,
)
from captioner.visualization.typography import INK, MUTED, WARNING, fit, font, one_line

if TYPE_CHECKING:
    from captioner.visualization.caption import Caption
    from captioner.visualization.vector import VectorPage

Page: TypeAlias = "PixelPage | VectorPage"

# Heights and widths in multiples of the text size.
WORD_LABEL_HEIGHT = 5.0
LEGEND_HEIGHT = 3.8
_WIDEST_BAR = 20.0
_LEGEND_WIDTH = 20.0

TRACK_COLOUR = "#e6e9ee"
PROBABILITY_COLOUR = "#2f6db3"  # blue and amber: distinct for every kind of colour vision
GATE_COLOUR = "#c98a1b"

# Words of the key and of notes, for the viewer too: {braces} are filled in where they are shown.
KEY = {
    "scale": "attention, × uniform (1: evenly spread)",
    "p": "probability of the word, given the words before it",
    "gate": "gate: how much the word draws on the picture",
    "unsure": f"unsure word: probability below {UNSURE_PROBABILITY:g}",
    "peak": f"peak of {PEAK_MARKED_FROM:g} × uniform or more: the highest, and others half as high",
    "cell": "cell that the word reads; the map shows the probability of each",
    "paths": "{shown} of {count} sampled paths: ○ cell of the first word, ● of this one",
}
NOTES = {
    "confidence": "Confidence {value}",
    "unsure": "Unsure caption: confidence {value}",
    "below": " (a caption is marked below {threshold})",
    "flat": "Attention is spread almost evenly for every word: never above {value} × uniform",
}


def caption_note(caption: Caption) -> tuple[str, bool]:
    """Return a line about what a reader should know first, or "", and whether it is a warning."""
    notes, warning = [], caption.is_unsure
    if caption.confidence is not None:
        note = NOTES["unsure" if warning else "confidence"]
        if caption.confidence_threshold is not None:
            note += NOTES["below"].format(threshold=f"{caption.confidence_threshold:.2f}")
        notes.append(note.replace("{value}", f"{caption.confidence:.2f}"))
    highest = max(map(peak, caption.maps), default=math.inf)
    if highest < FLAT_BELOW:
        warning = True
        notes.append(NOTES["flat"].format(value=f"{highest:.1f}"))
    return ". ".join(notes), warning


def draw_word_label(
    page: Page, caption: Caption, index: int, *, left: int, top: int, width: int, size: int
) -> None:
    """Draw a word (with "?" if unsure) over bars of p, its probability, and β, its gate if any."""
    probability = math.exp(float(caption.log_probs[index]))
    unsure = probability < UNSURE_PROBABILITY
    room = width - (size if unsure else 0)
    word = one_line(caption.words[index])
    text, face = fit(word, room, size_px=round(1.5 * size), smallest_px=size, bold=True)
    baseline = top + 1.95 * size
    page.text((left, baseline), text, fill=INK, font=face, anchor="ls")
    if unsure:
        after = left + face.getlength(text) + 0.15 * size
        sign = font(round(1.2 * size), bold=True)
        page.text((after, baseline), "?", fill=WARNING, font=sign, anchor="ls")
    width = min(width, round(_WIDEST_BAR * size))
    rows = [("p", probability, PROBABILITY_COLOUR)]
    if caption.beta is not None:
        rows.append(("β", float(caption.beta[index]), GATE_COLOUR))
    for row, (name, value, colour) in enumerate(rows):
        middle = top + round((3.1 + 1.3 * row) * size)
        number = "<0.01" if 0 < value < 0.005 else f"{value:.2f}"
        page.text((left, middle), name, fill=MUTED, font=font(size), anchor="lm")
        page.text((left + width, middle), number, fill=INK, font=font(size), anchor="rm")
        start, stop = left + round(1.1 * size), left + width - round(3.7 * size)
        y0, y1 = middle - round(0.24 * size), middle + round(0.24 * size)
        page.rectangle((start, y0, stop, y1), fill=TRACK_COLOUR)
        if filled := round((stop - start + 1) * min(max(value, 0.0), 1.0)):
            page.rectangle((start, y0, start + filled - 1, y1), fill=colour)


def draw_legend(page: Page, style: OverlayStyle, *, left: int, top: int, size: int) -> None:
    """Draw the scale, which is the same in every picture, with ticks in multiples of uniform."""
    face, width = font(size), round(_LEGEND_WIDTH * size)
    title, small = fit(KEY["scale"], width, size_px=size, smallest_px=size // 2)
    page.text((left, top + size), title, fill=MUTED, font=small, anchor="ls")
    y0, y1 = top + round(1.45 * size), top + round(2.5 * size)
    page.paste(style.ramp(width, y1 - y0), (left, y0, left + width, y1))
    for value, label in SCALE_TICKS:
        x = left + round((width - 1) * scale_octaves(value) / OCTAVES)
        page.line((x, y1, x, y1 + round(0.25 * size)), fill=MUTED, width=max(1, size // 12))
        # The first and last numbers stay within the bar's width.
        half = face.getlength(label) / 2
        centre = min(max(x, left + half), left + width - half)
        page.text((centre, y1 + 1.25 * size), label, fill=INK, font=face, anchor="ms")


def draw_footer(
    page: Page | None,
    captions: Sequence[Caption],
    style: OverlayStyle,
    *,
    left: int,
    top: int,
    width: int,
    size: int,
) -> int:
    """Draw the scale and the key to the signs, if on a page; return their height in pixels.

    They are in one row, or stacked where it is narrow.
    """
    key, line = sign_key(captions), round(1.7 * size)
    x, y, height, indent = left, top, line * len(key), 0
    if any(caption.words for caption in captions):
        legend_width, legend_height = round(_LEGEND_WIDTH * size), round(LEGEND_HEIGHT * size)
        if page is not None:
            draw_legend(page, style, left=left, top=top, size=size)
        indent = 2 * size
        if width >= 2 * (legend_width + indent):
            x += legend_width + 4 * size
            height = max(legend_height, height)
        else:
            y += legend_height + size
            height += legend_height + size
    if page is None:
        return height
    for number, (sign, meaning) in enumerate(key):
        baseline = y + size + line * number
        colour = WARNING if sign == "?" else INK
        page.text((x, baseline), sign, fill=colour, font=font(size, bold=True), anchor="ls")
        room = width - (x - left) - indent
        text, face = fit(meaning, room, size_px=size, smallest_px=size // 2)
        page.text((x + indent, baseline), text, fill=MUTED, font=face, anchor="ls")
    return height


def sign_key(captions: Sequence[Caption]) -> list[tuple[str, str]]:
    """Return the signs on the sheet with their meanings."""
    if not any(caption.words for caption in captions):
        return [("", "The caption has no words, so there is no attention to show.")]
    key = [("p", KEY["p"])]
    if any(caption.beta is not None for caption in captions):
        key.append(("β", KEY["gate"]))
    if any((np.exp(caption.log_probs) < UNSURE_PROBABILITY).any() for caption in captions):
        key.append(("?", KEY["unsure"]))
    soft = [caption for caption in captions if caption.cells is None]
    if any(peak(cells) >= PEAK_MARKED_FROM for caption in soft for cells in caption.maps):
        key.append(("+", KEY["peak"]))
    if len(soft) < len(captions):
        key.append(("□", KEY["cell"]))
    paths = [len(caption.paths) for caption in captions if caption.paths is not None]
    if paths:
        shown = min(max(paths), len(PATH_COLOURS))
        key.append(("○●", KEY["paths"].format(shown=shown, count=max(paths))))
    return key
