"""Several models on one photo: a row of overlays for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image

from captioner.visualization.heat import colour_scale
from captioner.visualization.labels import (
    WORD_LABEL_HEIGHT,
    draw_footer,
    draw_word_label,
    footer_height,
)
from captioner.visualization.look import Look, painted_word
from captioner.visualization.overlay import OPACITY, ColourMap, Style, resized
from captioner.visualization.sheet import panel_size
from captioner.visualization.typography import INK, MUTED, fit, font, one_line, wrap
from captioner.visualization.vector import VectorPage, finer, new_page, pen

if TYPE_CHECKING:
    from captioner.types import Caption

# Everything below is in pixels.
_PANEL_AREA = 200 * 150
_LONGEST_PANEL_SIDE = 400
_NARROWEST_SLOT = 150  # a word, its bars and their numbers need this much
_FEWEST_ACROSS, _MOST_ACROSS = 6, 14
_MARGIN, _GAP = 48, 20
_TEXT, _TITLE = 15, 26
_NAME_LINE, _TITLE_LINE = round(1.9 * _TEXT), round(1.3 * _TITLE)
_LABEL_HEIGHT = round(WORD_LABEL_HEIGHT * _TEXT)


def comparison_sheet(
    photo: Image.Image,
    captions: Sequence[tuple[str, Caption]],
    *,
    smooth: bool = True,
    style: Style = "colour",
    colour_map: ColourMap = "cividis",
    opacity: float = OPACITY,
    threshold: float = 0.0,
    vmax: float | None = None,
    across: int = 0,
) -> Image.Image:
    """Draw the photo, then a row a model: its name, its caption, one overlay a word.

    All rows share one colour scale, so that a model that looks sharply can be told from one that
    looks everywhere. A caption longer than the sheet is wide goes on in a second line of its row.

    Args:
        photo: the upright photo that was captioned; it is not changed.
        captions: a name and a caption for each model, all of this photo.
        vmax: top of the colour scale; None takes the largest of the captions' own.
        across: panels in a line; 0 takes what suits the longest caption.

    The others are those of `attention_sheet`.

    Raises:
        ImageError: a photo of another size than a caption's.
        ConfigError: a look that `overlay` cannot paint.
        ValueError: no captions.
    """
    look = Look(smooth, style, colour_map, opacity, threshold)
    sheet: Image.Image = _comparison(photo, captions, look, vmax, across, vector=False)
    return sheet


def vector_comparison(
    photo: Image.Image, captions: Sequence[tuple[str, Caption]], look: Look | None = None
) -> VectorPage:
    """The same as a page to save as PDF or SVG; its overlays are up to twice as fine."""
    page: VectorPage = _comparison(photo, captions, look or Look(), None, 0, vector=True)
    return page


def _comparison(
    photo: Image.Image,
    captions: Sequence[tuple[str, Caption]],
    look: Look,
    vmax: float | None,
    across: int,
    *,
    vector: bool,
) -> Any:
    if not captions:
        raise ValueError("there is nothing to compare")
    shown = [caption for _, caption in captions]
    if vmax is None:
        vmax = max(colour_scale(caption, smooth=look.smooth) for caption in shown)
    size = panel_size(photo.size, area=_PANEL_AREA, longest_side=_LONGEST_PANEL_SIDE)
    longest = max(len(caption.words) for caption in shown)
    across = across or min(max(longest, _FEWEST_ACROSS), _MOST_ACROSS)
    fine = finer(size, photo.size, vector=vector)
    small = resized(photo, shown[0].geometry, fine)
    slot_width = max(size[0], _NARROWEST_SLOT) + _GAP
    width = across * slot_width - _GAP
    titles = [
        wrap(one_line(caption.text) or "(no words)", font(_TITLE, bold=True), width, max_lines=3)
        for caption in shown
    ]
    slot_height = size[1] + _LABEL_HEIGHT + _GAP
    tops = [_MARGIN + size[1] + 2 * _GAP]
    for title, caption in zip(titles, shown, strict=True):
        lines = math.ceil(len(caption.words) / across)
        tops.append(tops[-1] + _row_head(title) + lines * slot_height + _GAP)

    height = tops[-1] + footer_height(shown, width, size=_TEXT) + _MARGIN
    sheet = new_page(width + 2 * _MARGIN, height, vector=vector, title=shown[0].text)
    sheet.paste(small, (_MARGIN, _MARGIN, _MARGIN + size[0], _MARGIN + size[1]))
    about = f"photo, {photo.width} × {photo.height} px"
    corner = (_MARGIN + size[0] + _GAP, _MARGIN + size[1])
    draw = pen(sheet)
    draw.text(corner, about, fill=MUTED, font=font(_TEXT), anchor="ls")
    for (name, caption), title, top in zip(captions, titles, tops, strict=False):
        label, face = fit(one_line(name), width, size_px=_TEXT, smallest_px=_TEXT // 2)
        draw.text((_MARGIN, top + _TEXT), label, fill=MUTED, font=face, anchor="ls")
        for number, line in enumerate(title):
            baseline = top + _NAME_LINE + round(0.8 * _TITLE) + _TITLE_LINE * number
            draw.text(
                (_MARGIN, baseline), line, fill=INK, font=font(_TITLE, bold=True), anchor="ls"
            )
        for index, word in enumerate(caption.words):
            x = _MARGIN + index % across * slot_width
            y = top + _row_head(title) + index // across * slot_height
            panel = painted_word(small, caption, index, vmax=vmax, look=look)
            sheet.paste(panel, (x, y, x + size[0], y + size[1]))
            draw_word_label(
                sheet,
                left=x,
                top=y + size[1],
                width=slot_width - _GAP,
                size=_TEXT,
                word=word,
                log_prob=float(caption.log_probs[index]),
                beta=None if caption.beta is None else float(caption.beta[index]),
            )
    draw_footer(
        sheet,
        shown,
        left=_MARGIN,
        top=tops[-1],
        width=width,
        size=_TEXT,
        vmax=vmax,
        look=look,
    )
    return sheet


def _row_head(title: list[str]) -> int:
    """Height of a model's name and caption."""
    return _NAME_LINE + _TITLE_LINE * len(title) + _TEXT // 2
