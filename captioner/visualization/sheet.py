"""Sheets of captions: the photo, its words with their maps, labels, and a key to the signs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from PIL import Image

from captioner.visualization import style as styles
from captioner.visualization.overlay import PixelPage, peak, resize_captioned, scaled_size
from captioner.visualization.style import Layers, OverlayStyle, Style, scale_octaves
from captioner.visualization.typography import INK, MUTED, RULE, WARNING, fit, font, one_line, wrap

if TYPE_CHECKING:
    from captioner.visualization.caption import Caption
    from captioner.visualization.vector import VectorPage

Named: TypeAlias = "Sequence[tuple[str, Caption]]"  # by models, all of one image


@dataclass(frozen=True)
class _Layout:
    """Sizes in pixels that a kind of sheet is laid out by."""

    panel_area: int  # of every image, whatever its shape
    longest_side: int  # of a panel
    narrowest_slot: int  # a word, its bars and their numbers need this much
    margin: int
    gap: int
    title: int
    widest: int  # of all panels in a row
    title_lines: int  # at most
    text: int = 15


SHEET = _Layout(264 * 198, 528, 168, margin=42, gap=24, title=30, widest=1960, title_lines=6)
_COMPARISON = _Layout(200 * 150, 400, 150, margin=48, gap=20, title=26, widest=1800, title_lines=3)
_VECTOR_PIXELS = 100_000  # of the photo on a vector page, about 200 dots an inch
_NARROWEST_CONTENT = 520  # for the title and the footer of a sheet
_SHEET_SHAPE = 1.35  # width to height that the number of columns of a sheet aims at


def attention_sheet(image: Image.Image, caption: Caption, style: Style = None) -> Image.Image:
    """Draw a caption's sheet: the image, then one overlay a word with its probability and gate.

    Panels have one size in pixels and the image's shape, so the sheet does not grow with the image,
    which is the upright one that was captioned.
    """
    return _draw(image, [("", caption)], style)


def comparison_sheet(image: Image.Image, captions: Named, style: Style = None) -> Image.Image:
    """Draw a sheet of several models, `[("soft", caption), ("hard", other)]`: of each its name."""
    return _draw(image, captions, style)


def vector_sheet(image: Image.Image, captions: Named, style: Style = None) -> VectorPage:
    """Draw a sheet to save as PDF or SVG: of one caption without a name, or a comparison."""
    return _draw(image, captions, style, vector=True)


def _draw(image: Image.Image, named: Named, style: Style, *, vector: bool = False) -> Any:
    """Draw captions on a new page of pixels or vectors, and return the image or the page."""
    style = OverlayStyle.of(style)
    layout = _COMPARISON if named[0][0] else SHEET
    margin, gap, text = layout.margin, layout.gap, layout.text
    captions = [caption for _, caption in named]
    pixels = image.width * image.height
    scale = min(math.sqrt(layout.panel_area / pixels), layout.longest_side / max(image.size))
    size = shown = scaled_size(image.size, scale)
    if vector:  # finer than the panels
        shown = scaled_size(image.size, min(1.0, math.sqrt(_VECTOR_PIXELS / pixels)))
    photo = resize_captioned(image, captions[0].geometry, shown)
    if vector:  # few colours, because matplotlib then compresses it well
        photo = photo.quantize(255, method=Image.Quantize.FASTOCTREE).convert("RGB")
    layers = Layers(photo, style)
    label_width = max(size[0], layout.narrowest_slot)
    slot = label_width + gap, size[1] + round(WORD_LABEL_HEIGHT * text) + gap
    across = _columns(1 + max(len(caption.words) for caption in captions), slot, layout)
    width = max(across * slot[0] - gap, _NARROWEST_CONTENT)
    tops, heads = [margin], []  # of each model, the last of the footer; heights of the headings
    for name, caption in named:
        heads.append(draw_heading(None, name, caption, layout, 0, width) + text)
        lines = math.ceil((1 + len(caption.words)) / across)
        tops.append(tops[-1] + heads[-1] + lines * slot[1] + (gap if name else 0))
    footer = {"left": margin, "top": tops[-1], "width": width, "size": text}
    height = tops[-1] + draw_footer(None, captions, style, **footer) + margin

    page: Page
    if vector:
        from captioner.visualization.vector import VectorPage  # slow to import

        page = VectorPage(width + 2 * margin, height, title=captions[0].text)
    else:
        page = PixelPage(width + 2 * margin, height)
    about = f"photo, {image.width} × {image.height} px"
    about, face = fit(about, label_width, size_px=text, smallest_px=text // 2)
    for (name, caption), head, top in zip(named, heads, tops, strict=False):
        draw_heading(page, name, caption, layout, top, width)
        for number in range(1 + len(caption.words)):
            left = margin + number % across * slot[0]
            upper = top + head + number // across * slot[1]
            box = left, upper, left + size[0], upper + size[1]
            if number:
                page.draw_word(layers, caption, number - 1, box)
                place = {"left": left, "top": box[3], "width": label_width, "size": text}
                draw_word_label(page, caption, number - 1, **place)
            else:
                # A hairline around it: a white photo has no edge otherwise.
                page.rectangle((left - 1, upper - 1, box[2], box[3]), fill=RULE)
                page.paste(photo, box)
                baseline = box[3] + round(1.95 * text)
                page.text((left, baseline), about, fill=MUTED, font=face, anchor="ls")
    draw_footer(page, captions, style, **footer)
    return page.image if isinstance(page, PixelPage) else page


def draw_heading(
    page: Page | None, name: str, caption: Caption, layout: _Layout, top: int, width: int
) -> int:
    """Draw a model's name if any, its caption and the note, if on a page; return their height."""
    left, text, title_line = layout.margin, layout.text, round(1.3 * layout.title)
    name_line = round(1.9 * text) if name else 0
    face = font(layout.title, bold=True, text=caption.text)
    lines = wrap(one_line(caption.text) or "(no words)", face, width, max_lines=layout.title_lines)
    note, warning = caption_note(caption)
    height = name_line + title_line * len(lines)
    if page is not None:
        label, small = fit(one_line(name), width, size_px=text, smallest_px=text // 2)
        page.text((left, top + text), label, fill=MUTED, font=small, anchor="ls")
        for number, line in enumerate(lines):
            y = top + name_line + round(0.8 * layout.title) + number * title_line
            page.text((left, y), line, fill=INK, font=face, anchor="ls")
        shown, small = fit(note, width, size_px=text, smallest_px=text // 2)
        colour = WARNING if warning else MUTED
        page.text((left, top + height + text), shown, fill=colour, font=small, anchor="ls")
    return height + (round(1.8 * text) if note else 0)


def _columns(panels: int, slot: tuple[int, int], layout: _Layout) -> int:
    """Return panels in a row: a sheet comes near _SHEET_SHAPE with few empty places."""
    most = max(1, (layout.widest + layout.gap) // slot[0])
    if layout is _COMPARISON:  # rows as long as its width allows, and of one length
        return math.ceil(panels / math.ceil(panels / most))

    def badness(across: int) -> float:
        down = math.ceil(panels / across)
        shape = across * slot[0] / (down * slot[1])
        empty = (across * down - panels) / panels
        return abs(math.log(shape / _SHEET_SHAPE)) + empty

    return min(range(1, min(panels, most) + 1), key=badness)


Page: TypeAlias = "PixelPage | VectorPage"

# Heights and widths in multiples of the text size.
WORD_LABEL_HEIGHT = 5.0
LEGEND_HEIGHT = 3.8
_WIDEST_BAR = 20.0
_LEGEND_WIDTH = 20.0
_KEY_LINES = 3  # of a sign's meaning, at most

TRACK_COLOUR = "#e6e9ee"
PROBABILITY_COLOUR = "#2f6db3"  # blue and amber: distinct for every kind of colour vision
GATE_COLOUR = "#c98a1b"

# Words of the key and of notes, for the viewer too: {braces} are filled in where they are shown.
KEY = {
    "scale": "attention, × uniform (1: evenly spread)",
    "p": "probability of the word, given the words before it",
    "gate": "gate: how much the word draws on the picture",
    "unsure": f"unsure word: probability below {styles.UNSURE_PROBABILITY:g}",
    "peak": f"peak of {styles.PEAK_MARKED_FROM:g} × uniform or more: the highest, and others half "
    "as high",
    "cell": "cell that the word reads; the map shows the probability of each",
    "paths": "{shown} of {count} sampled paths: ○ cell of the first word, ● of this one",
}
NOTES = {
    "confidence": "Confidence {value}",
    "unsure": "Unsure caption: confidence {value}",
    "below": " (unsure below {threshold})",
    "score": "Log-probability {value} a word",
    "flat": "Attention is spread almost evenly for every word: never above {value} × uniform",
}


def caption_note(caption: Caption) -> tuple[str, bool]:
    """Return a line about what a reader should know first, or "", and whether it is a warning."""
    notes, warning = [], caption.is_unsure
    if caption.confidence is not None:
        value, *threshold = caption.confidence_digits
        note = NOTES["unsure" if warning else "confidence"]
        if threshold:
            note += NOTES["below"].format(threshold=threshold[0])
        notes.append(note.replace("{value}", value))
    elif caption.words:  # given by the user, or of a model without a calibrator
        steps = len(caption.words) + (caption.end_log_prob is not None)
        notes.append(NOTES["score"].format(value=f"{caption.log_prob / steps:.2f}"))
    highest = max(map(peak, caption.maps), default=math.inf)
    if highest < styles.FLAT_BELOW:
        warning = True
        notes.append(NOTES["flat"].format(value=f"{highest:.1f}"))
    return ". ".join(notes), warning


def draw_word_label(
    page: Page, caption: Caption, index: int, *, left: int, top: int, width: int, size: int
) -> None:
    """Draw a word (with "?" if unsure) over bars of p, its probability, and β, its gate if any."""
    probability = math.exp(float(caption.log_probs[index]))
    unsure = probability < styles.UNSURE_PROBABILITY
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
    for value, label in styles.SCALE_TICKS:
        x = left + round((width - 1) * scale_octaves(value) / styles.OCTAVES)
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
    """Draw the scale and the key to the signs, if on a page; return their height in pixels."""
    x, y, indent, legend_height = left, top, 0, 0
    if any(caption.words for caption in captions):
        legend_width, legend_height = round(_LEGEND_WIDTH * size), round(LEGEND_HEIGHT * size)
        if page is not None:
            draw_legend(page, style, left=left, top=top, size=size)
        indent = 2 * size
        if width >= 2 * (legend_width + indent):  # in one row
            x += legend_width + 4 * size
        else:
            y += legend_height + size
    face, baseline = font(size), y + size
    for sign, meaning in sign_key(captions):
        if page is not None:
            colour = WARNING if sign == "?" else INK
            page.text((x, baseline), sign, fill=colour, font=font(size, bold=True), anchor="ls")
        for text in wrap(meaning, face, left + width - x - indent, max_lines=_KEY_LINES):
            if page is not None:
                page.text((x + indent, baseline), text, fill=MUTED, font=face, anchor="ls")
            baseline += round(1.35 * size)
        baseline += round(0.35 * size)
    return max(legend_height, baseline - size - top)


def sign_key(captions: Sequence[Caption]) -> list[tuple[str, str]]:
    """Return the signs on the sheet with their meanings."""
    if not any(caption.words for caption in captions):
        return [("", "The caption has no words, so there is no attention to show.")]
    key = [("p", KEY["p"])]
    if any(caption.beta is not None for caption in captions):
        key.append(("β", KEY["gate"]))
    if any((np.exp(caption.log_probs) < styles.UNSURE_PROBABILITY).any() for caption in captions):
        key.append(("?", KEY["unsure"]))
    soft = [caption for caption in captions if caption.cells is None]
    if any(peak(cells) >= styles.PEAK_MARKED_FROM for caption in soft for cells in caption.maps):
        key.append(("+", KEY["peak"]))
    if len(soft) < len(captions):
        key.append(("□", KEY["cell"]))
    if paths := [len(caption.paths) for caption in captions if caption.paths is not None]:
        shown = min(max(paths), len(styles.PATH_COLOURS))
        key.append(("○●", KEY["paths"].format(shown=shown, count=max(paths))))
    return key
