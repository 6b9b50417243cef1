"""The sheet: a caption, its photo, and where the model looked for every word."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw

from captioner.rendering.heat import attention_heat, colour_scale
from captioner.rendering.labels import (
    LEGEND_HEIGHT,
    WORD_LABEL_HEIGHT,
    draw_legend,
    draw_word_label,
)
from captioner.rendering.overlay import (
    OPACITY,
    ColourMap,
    cell_is_visible,
    outline_cell,
    overlay,
    resized,
)
from captioner.rendering.typography import INK, MUTED, fit, font, one_line, wrap

if TYPE_CHECKING:
    from captioner.grid import Caption

# Everything below is in pixels.
_PANEL_AREA = 360 * 270  # panels of every photo have this area, whatever the photo's shape
_LONGEST_PANEL_SIDE = 720
_NARROWEST_SLOT = 220  # a word, its bars and their numbers need this much
_NARROWEST_CONTENT = 600  # for the title and the footer
_WIDEST_CONTENT = 2600
_SHEET_SHAPE = 1.35  # width to height that the number of columns aims at
_MARGIN = 64
_GAP = 36
_TEXT, _TITLE = 19, 42
_TITLE_LINE, _KEY_LINE = round(1.3 * _TITLE), round(1.7 * _TEXT)
_LABEL_HEIGHT = round(WORD_LABEL_HEIGHT * _TEXT)
_LEGEND_WIDTH = 380


def attention_sheet(
    photo: Image.Image,
    caption: Caption,
    *,
    smooth: bool = True,
    colour_map: ColourMap = "cividis",
    opacity: float = OPACITY,
    vmax: float | None = None,
) -> Image.Image:
    """Draw a caption's sheet: the photo, then one overlay a word in reading order.

    Under each overlay stand the word, its probability and its gate; below all, the one colour
    scale that the words share. The cell that hard attention sampled is outlined. Panels have one
    size in pixels and the photo's own shape, so the sheet does not grow with the photo.

    Args:
        photo: the upright photo that was captioned; it is not changed.
        smooth: False shows the raw cells.
        vmax: top of the colour scale in multiples of uniform attention, to compare captions;
            None takes `colour_scale(caption)`.

    Raises:
        PhotoError: a photo of another size than the caption's.
        ConfigError: an unknown colour map, or an opacity outside 0 to 1.
    """
    if vmax is None:
        vmax = colour_scale(caption, smooth=smooth)
    size = _panel_size(photo.size)
    small = resized(photo, caption.geometry, size)
    panels = [small]
    if caption.words:
        heats = attention_heat(
            caption.maps, caption.geometry, width_px=size[0], height_px=size[1], smooth=smooth
        )
        panels += [
            overlay(small, heat, vmax=vmax, colour_map=colour_map, opacity=opacity)
            for heat in heats
        ]
    if caption.cells is not None:
        for index, panel in enumerate(panels[1:]):
            outline_cell(panel, caption, index)

    slot_width, slot_height = max(size[0], _NARROWEST_SLOT), size[1] + _LABEL_HEIGHT
    across = _columns(len(panels), slot_width, slot_height)
    down = math.ceil(len(panels) / across)
    content = max(across * (slot_width + _GAP) - _GAP, _NARROWEST_CONTENT)
    title_font = font(_TITLE, bold=True)
    title = wrap(one_line(caption.text) or "(no words)", title_font, content, max_lines=6)
    panels_top = _MARGIN + _TITLE_LINE * len(title) + _TEXT
    footer_top = panels_top + down * (slot_height + _GAP)
    footer = _footer(caption, content, vmax, colour_map)

    sheet = Image.new("RGB", (content + 2 * _MARGIN, footer_top + footer.height + _MARGIN), "white")
    draw = ImageDraw.Draw(sheet)
    for number, line in enumerate(title):
        baseline = _MARGIN + round(0.8 * _TITLE) + _TITLE_LINE * number
        draw.text((_MARGIN, baseline), line, fill=INK, font=title_font, anchor="ls")
    for slot, panel in enumerate(panels):
        left = _MARGIN + slot % across * (slot_width + _GAP)
        top = panels_top + slot // across * (slot_height + _GAP)
        sheet.paste(panel, (left, top))
        if slot == 0:
            about = f"photo, {photo.width} × {photo.height} px"
            text, face = fit(about, slot_width, size_px=_TEXT, smallest_px=_TEXT // 2)
            baseline = top + size[1] + round(1.95 * _TEXT)
            draw.text((left, baseline), text, fill=MUTED, font=face, anchor="ls")
        else:
            draw_word_label(
                sheet,
                left=left,
                top=top + size[1],
                width=slot_width,
                size=_TEXT,
                word=caption.words[slot - 1],
                log_prob=float(caption.log_probs[slot - 1]),
                beta=None if caption.beta is None else float(caption.beta[slot - 1]),
            )
    sheet.paste(footer, (_MARGIN, footer_top))
    return sheet


def _panel_size(photo_size: tuple[int, int]) -> tuple[int, int]:
    """Width and height of a panel: the photo's shape, one area, no side too long.

    >>> _panel_size((4000, 3000)), _panel_size((100, 1000))
    ((360, 270), (72, 720))
    """
    width, height = photo_size
    scale = min(math.sqrt(_PANEL_AREA / (width * height)), _LONGEST_PANEL_SIDE / max(photo_size))
    return max(1, round(width * scale)), max(1, round(height * scale))


def _columns(panels: int, slot_width: int, slot_height: int) -> int:
    """Panels in a row: the sheet comes near _SHEET_SHAPE with few empty places."""

    def badness(across: int) -> float:
        down = math.ceil(panels / across)
        shape = across * (slot_width + _GAP) / (down * (slot_height + _GAP))
        empty = (across * down - panels) / panels
        return abs(math.log(shape / _SHEET_SHAPE)) + empty

    most = max(1, (_WIDEST_CONTENT + _GAP) // (slot_width + _GAP))
    return min(range(1, min(panels, most) + 1), key=badness)


def _footer(caption: Caption, width: int, vmax: float, colour_map: ColourMap) -> Image.Image:
    """The colour legend and the meaning of the signs: side by side, or stacked where narrow."""
    key = _key(caption)
    left, top = 0, 0
    legend_height = 0
    if caption.words:
        legend_height = round(LEGEND_HEIGHT * _TEXT)
        if width >= 2 * (_LEGEND_WIDTH + _GAP):
            left = _LEGEND_WIDTH + 2 * _GAP
        else:
            top = legend_height + _TEXT
    height = max(legend_height, top + _KEY_LINE * len(key))
    footer = Image.new("RGB", (width, height), "white")
    if caption.words:
        draw_legend(
            footer,
            left=0,
            top=0,
            width=_LEGEND_WIDTH,
            size=_TEXT,
            vmax=vmax,
            colour_map=colour_map,
        )
    draw = ImageDraw.Draw(footer)
    indent = round(1.6 * _TEXT) if caption.words else 0
    for number, (sign, meaning) in enumerate(key):
        baseline = top + _TEXT + _KEY_LINE * number
        draw.text((left, baseline), sign, fill=INK, font=font(_TEXT, bold=True), anchor="ls")
        room = width - left - indent
        text, face = fit(meaning, room, size_px=_TEXT, smallest_px=_TEXT // 2)
        draw.text((left + indent, baseline), text, fill=MUTED, font=face, anchor="ls")
    return footer


def _key(caption: Caption) -> list[tuple[str, str]]:
    """Signs on the sheet with their meanings."""
    if not caption.words:
        return [("", "The caption has no words, so there is no attention to show.")]
    key = [("p", "probability of the word, given the words before it")]
    if caption.beta is not None:
        key.append(("β", "gate: how much the word draws on the picture"))
    if caption.cells is not None:
        all_visible = all(cell_is_visible(caption, index) for index in range(len(caption.words)))
        beyond = "" if all_visible else " (no outline: outside the photo)"
        key.append(("□", f"cell sampled for the word{beyond}"))
    return key
