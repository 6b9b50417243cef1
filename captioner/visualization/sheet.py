"""The sheet: a caption, its photo, and where the model looked for every word."""

from __future__ import annotations

import math
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
from captioner.visualization.typography import INK, MUTED, fit, font, one_line, wrap
from captioner.visualization.vector import VectorPage, finer, new_page, pen

if TYPE_CHECKING:
    from captioner.types import Caption

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
_TITLE_LINE = round(1.3 * _TITLE)
_LABEL_HEIGHT = round(WORD_LABEL_HEIGHT * _TEXT)


def attention_sheet(
    photo: Image.Image,
    caption: Caption,
    *,
    smooth: bool = True,
    style: Style = "colour",
    colour_map: ColourMap = "cividis",
    opacity: float = OPACITY,
    threshold: float = 0.0,
    vmax: float | None = None,
) -> Image.Image:
    """Draw a caption's sheet: the photo, then one overlay a word in reading order.

    Under each overlay stand the word, its probability and its gate; below all, the one colour
    scale that the words share. The cell that hard attention sampled is outlined. Panels have one
    size in pixels and the photo's own shape, so the sheet does not grow with the photo.

    Args:
        photo: the upright photo that was captioned; it is not changed.
        smooth: False shows the raw cells.
        style, colour_map, opacity, threshold: as in `overlay`, threshold in multiples of uniform
            attention.
        vmax: top of the colour scale in multiples of uniform attention, to compare captions;
            None takes `colour_scale(caption)`.

    Raises:
        ImageError: a photo of another size than the caption's.
        ConfigError: a look that `overlay` cannot paint.
    """
    look = Look(smooth, style, colour_map, opacity, threshold)
    sheet: Image.Image = _sheet(photo, caption, look, vmax, vector=False)
    return sheet


def vector_sheet(
    photo: Image.Image, caption: Caption, look: Look | None = None, *, vmax: float | None = None
) -> VectorPage:
    """The same sheet as a page to save as PDF or SVG; its overlays are up to twice as fine."""
    sheet: VectorPage = _sheet(photo, caption, look or Look(), vmax, vector=True)
    return sheet


def _sheet(
    photo: Image.Image, caption: Caption, look: Look, vmax: float | None, *, vector: bool
) -> Any:
    if vmax is None:
        vmax = colour_scale(caption, smooth=look.smooth)
    size = panel_size(photo.size)
    small = resized(photo, caption.geometry, finer(size, photo.size, vector=vector))
    slot_width, slot_height = max(size[0], _NARROWEST_SLOT), size[1] + _LABEL_HEIGHT
    panels = 1 + len(caption.words)
    across = _columns(panels, slot_width, slot_height)
    down = math.ceil(panels / across)
    content = max(across * (slot_width + _GAP) - _GAP, _NARROWEST_CONTENT)
    title_font = font(_TITLE, bold=True)
    title = wrap(one_line(caption.text) or "(no words)", title_font, content, max_lines=6)
    panels_top = _MARGIN + _TITLE_LINE * len(title) + _TEXT
    footer_top = panels_top + down * (slot_height + _GAP)
    height = footer_top + footer_height([caption], content, size=_TEXT) + _MARGIN

    sheet = new_page(content + 2 * _MARGIN, height, vector=vector, title=caption.text)
    draw = pen(sheet)
    for number, line in enumerate(title):
        baseline = _MARGIN + round(0.8 * _TITLE) + _TITLE_LINE * number
        draw.text((_MARGIN, baseline), line, fill=INK, font=title_font, anchor="ls")
    for slot in range(panels):
        left = _MARGIN + slot % across * (slot_width + _GAP)
        top = panels_top + slot // across * (slot_height + _GAP)
        panel = painted_word(small, caption, slot - 1, vmax=vmax, look=look) if slot else small
        sheet.paste(panel, (left, top, left + size[0], top + size[1]))
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
    draw_footer(
        sheet,
        [caption],
        left=_MARGIN,
        top=footer_top,
        width=content,
        size=_TEXT,
        vmax=vmax,
        look=look,
    )
    return sheet


def panel_size(
    photo_size: tuple[int, int],
    *,
    area: int = _PANEL_AREA,
    longest_side: int = _LONGEST_PANEL_SIDE,
) -> tuple[int, int]:
    """Width and height of a panel: the photo's shape, one area, no side too long.

    >>> panel_size((4000, 3000)), panel_size((100, 1000))
    ((360, 270), (72, 720))
    """
    width, height = photo_size
    scale = min(math.sqrt(area / (width * height)), longest_side / max(photo_size))
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
