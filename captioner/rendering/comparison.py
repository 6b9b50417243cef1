"""Several models on one photo: a row of overlays for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw

from captioner.rendering.heat import attention_heat, colour_scale
from captioner.rendering.labels import WORD_LABEL_HEIGHT, draw_footer, draw_word_label
from captioner.rendering.overlay import OPACITY, ColourMap, mark_looks, overlay, resized
from captioner.rendering.sheet import panel_size
from captioner.rendering.typography import INK, MUTED, fit, font, one_line, wrap

if TYPE_CHECKING:
    from captioner.grid import Caption

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
    colour_map: ColourMap = "cividis",
    opacity: float = OPACITY,
) -> Image.Image:
    """Draw the photo, then a row a model: its name, its caption, one overlay a word.

    All rows share one colour scale, so that a model that looks sharply can be told from one that
    looks everywhere. A caption longer than the sheet is wide goes on in a second line of its row.

    Args:
        photo: the upright photo that was captioned; it is not changed.
        captions: a name and a caption for each model, all of this photo.

    Raises:
        PhotoError: a photo of another size than a caption's.
        ConfigError: an unknown colour map, or an opacity outside 0 to 1.
        ValueError: no captions.
    """
    if not captions:
        raise ValueError("there is nothing to compare")
    shown = [caption for _, caption in captions]
    vmax = max(colour_scale(caption, smooth=smooth) for caption in shown)
    look = _Look(smooth, colour_map, opacity, vmax)
    size = panel_size(photo.size, area=_PANEL_AREA, longest_side=_LONGEST_PANEL_SIDE)
    longest = max(len(caption.words) for caption in shown)
    across = min(max(longest, _FEWEST_ACROSS), _MOST_ACROSS)
    small = resized(photo, shown[0].geometry, size)
    rows = [_row(small, name, caption, across, look) for name, caption in captions]
    width = rows[0].width
    footer = draw_footer(shown, width, vmax=vmax, colour_map=colour_map, size=_TEXT)

    rows_top = _MARGIN + size[1] + 2 * _GAP
    footer_top = rows_top + sum(row.height + _GAP for row in rows)
    height = footer_top + footer.height + _MARGIN
    sheet = Image.new("RGB", (width + 2 * _MARGIN, height), "white")
    sheet.paste(small, (_MARGIN, _MARGIN))
    about = f"photo, {photo.width} × {photo.height} px"
    corner = (_MARGIN + size[0] + _GAP, _MARGIN + size[1])
    ImageDraw.Draw(sheet).text(corner, about, fill=MUTED, font=font(_TEXT), anchor="ls")
    top = rows_top
    for row in rows:
        sheet.paste(row, (_MARGIN, top))
        top += row.height + _GAP
    sheet.paste(footer, (_MARGIN, footer_top))
    return sheet


@dataclass(frozen=True)
class _Look:
    smooth: bool
    colour_map: ColourMap
    opacity: float
    vmax: float


def _row(photo: Image.Image, name: str, caption: Caption, across: int, look: _Look) -> Image.Image:
    """One model's name, caption and overlays; photo: at the size of a panel."""
    slot_width = max(photo.width, _NARROWEST_SLOT) + _GAP
    slot_height = photo.height + _LABEL_HEIGHT + _GAP
    width = across * slot_width - _GAP
    title_font = font(_TITLE, bold=True)
    title = wrap(one_line(caption.text) or "(no words)", title_font, width, max_lines=3)
    panels_top = _NAME_LINE + _TITLE_LINE * len(title) + _TEXT // 2
    down = math.ceil(len(caption.words) / across)
    row = Image.new("RGB", (width, panels_top + down * slot_height), "white")
    draw = ImageDraw.Draw(row)
    label, face = fit(one_line(name), width, size_px=_TEXT, smallest_px=_TEXT // 2)
    draw.text((0, _TEXT), label, fill=MUTED, font=face, anchor="ls")
    for number, line in enumerate(title):
        baseline = _NAME_LINE + round(0.8 * _TITLE) + _TITLE_LINE * number
        draw.text((0, baseline), line, fill=INK, font=title_font, anchor="ls")
    for index, word in enumerate(caption.words):
        left = index % across * slot_width
        top = panels_top + index // across * slot_height
        heat = attention_heat(
            caption.maps[index],
            caption.geometry,
            width_px=photo.width,
            height_px=photo.height,
            smooth=look.smooth,
        )
        panel = overlay(
            photo, heat, vmax=look.vmax, colour_map=look.colour_map, opacity=look.opacity
        )
        mark_looks(panel, caption, index)
        row.paste(panel, (left, top))
        draw_word_label(
            row,
            left=left,
            top=top + photo.height,
            width=slot_width - _GAP,
            size=_TEXT,
            word=word,
            log_prob=float(caption.log_probs[index]),
            beta=None if caption.beta is None else float(caption.beta[index]),
        )
    return row
