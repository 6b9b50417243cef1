"""The alignment matrix that papers show: words down, cells, rows and columns of the grid across."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from captioner.visualization.labels import LEGEND_HEIGHT, draw_legend
from captioner.visualization.style import OverlayStyle, colour_table, scale_levels
from captioner.visualization.typography import INK, MUTED, fit, font, one_line, wrap
from captioner.visualization.vector import VectorPage, new_page, pen

if TYPE_CHECKING:
    from captioner.types import Caption

# Everything below is in pixels.
_TEXT, _TITLE = 19, 34
_MARGIN, _GAP = 56, 48
_ROW = 34  # height of a word
_CELLS_WIDTH = 900  # about; cells are whole pixels, at least _NARROWEST wide
_NARROWEST, _WIDEST = 3, 34
_WIDEST_WORD = 220
_LEGEND_WIDTH = 20 * _TEXT


def alignment_matrix(caption: Caption, style: OverlayStyle | None = None) -> Image.Image:
    """Draw attention as a matrix: words × cells (row by row), words × rows, words × columns.

    Rows and columns are sums over the grid as the image shows it. All are on the scale of every
    picture, in multiples of uniform attention. The cells that hard attention sampled are marked.
    """
    return _draw_matrix(caption, style or OverlayStyle(), vector=False)


def vector_matrix(caption: Caption, style: OverlayStyle | None = None) -> VectorPage:
    """Draw the same as a page to save as PDF or SVG."""
    return _draw_matrix(caption, style or OverlayStyle(), vector=True)


def _draw_matrix(caption: Caption, style: OverlayStyle, *, vector: bool) -> Any:
    """Draw the matrix on a new page of pixels or vectors, and return the page."""
    # Columns run from the image's left to its right; all in multiples of uniform attention.
    maps = caption.maps[:, :, ::-1] if caption.geometry.flipped else caption.maps
    count, rows, columns = maps.shape
    length = rows * columns
    unit = min(max(_CELLS_WIDTH // length, _NARROWEST), _WIDEST)
    label_width = round(
        max([font(_TEXT, text=word).getlength(one_line(word)) for word in caption.words], default=0)
    )
    label_width = min(label_width, _WIDEST_WORD) + _TEXT // 2
    parts = [
        (f"{length} cells, row by row", maps.reshape(count, length) * length, unit),
        (f"{rows} rows, from the top", maps.sum(2) * rows, _WIDEST),
        (f"{columns} columns, from the left", maps.sum(1) * columns, _WIDEST),
    ]
    lefts, left = [], _MARGIN + label_width
    for heading, values, wide in parts:
        lefts.append(left)
        head = round(font(_TEXT).getlength(heading))
        left += max(values.shape[1] * wide, head) + _GAP
    width = max(left - _GAP, lefts[1] + _LEGEND_WIDTH) + _MARGIN
    title_font = font(_TITLE, bold=True, text=caption.text)
    title = wrap(
        one_line(caption.text) or "(no words)", title_font, width - 2 * _MARGIN, max_lines=3
    )
    title_line = round(1.3 * _TITLE)
    top = _MARGIN + title_line * len(title) + 2 * _TEXT
    bottom = top + _ROW * count
    height = bottom + 2 * _TEXT + round(LEGEND_HEIGHT * _TEXT) + _MARGIN

    page = new_page(width, height, vector=vector, title=caption.text)
    draw = pen(page)
    for number, line in enumerate(title):
        baseline = _MARGIN + round(0.8 * _TITLE) + title_line * number
        draw.text((_MARGIN, baseline), line, fill=INK, font=title_font, anchor="ls")
    for index, word in enumerate(caption.words):
        text, face = fit(one_line(word), _WIDEST_WORD, size_px=_TEXT, smallest_px=_TEXT // 2)
        x, y = _MARGIN + label_width - _TEXT // 2, top + _ROW * index + _ROW // 2
        draw.text((x, y), text, fill=INK, font=face, anchor="rm")
    table = colour_table(style.colour_map)
    for (heading, values, wide), x in zip(parts, lefts, strict=True):
        draw.text((x, top - _TEXT // 2), heading, fill=MUTED, font=font(_TEXT), anchor="ls")
        if not count:
            continue
        painted = np.repeat(np.repeat(table[scale_levels(values)], _ROW, axis=0), wide, axis=1)
        block = Image.fromarray(painted[:-1])
        page.paste(block, (x, top, x + block.width, top + block.height))
        for y in range(top + _ROW - 1, bottom - 1, _ROW):  # between words
            draw.line((x, y, x + block.width - 1, y), fill="#ffffff", width=1)
    for place in range(columns, length, columns):  # where a row of the grid ends
        x = lefts[0] + place * unit
        draw.line((x, top, x, bottom - 2), fill="#ffffff", width=1)
    if caption.cells is not None:
        for index in range(count):
            for cell in np.unique(caption.cells[index]).tolist():
                if caption.geometry.flipped:
                    cell += columns - 1 - 2 * (cell % columns)
                _mark(draw, lefts[0] + cell * unit + unit / 2, top + _ROW * index + _ROW / 2, unit)
        if count:
            text = "□ cell that the word reads"
            baseline = bottom + 2 * _TEXT + _TEXT
            x = lefts[0] + _LEGEND_WIDTH + 2 * _TEXT
            draw.text((x, baseline), text, fill=MUTED, font=font(_TEXT), anchor="ls")
    if count:
        legend = OverlayStyle(kind="colour", colour_map=style.colour_map)
        top = bottom + 2 * _TEXT
        draw_legend(page, legend, left=lefts[0], top=top, width=_LEGEND_WIDTH, size=_TEXT)
    return page


def _mark(draw: Any, x: float, y: float, unit: int) -> None:
    """Draw a small square with a border that shows on every colour."""
    half = max(2, min(unit // 2 - 2, 6))
    left, top = round(x - half), round(y - half)
    for colour, less in (("#000000", 0), ("#ffffff", 1), ("#000000", 3)):
        if half > less:
            side = 2 * (half - less) - 1
            box = (left + less, top + less, left + less + side, top + less + side)
            draw.rectangle(box, fill=colour)
