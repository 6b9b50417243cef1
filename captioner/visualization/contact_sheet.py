"""A contact sheet: small images in rows, each with a line or two of text."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageOps

from captioner.visualization.typography import INK, font, one_line, wrap

COLUMNS = 6
TILE_PX = 200
_TEXT_PX, _LINES = 13, 3
_GAP_PX = 8


def contact_sheet(images: Sequence[tuple[Image.Image, str]]) -> Image.Image:
    """Draw images with their texts, row by row, on white."""
    columns = min(COLUMNS, max(1, len(images)))
    rows = -(-len(images) // columns)
    line_px = round(1.3 * _TEXT_PX)
    height = TILE_PX + _LINES * line_px + 2 * _GAP_PX
    width = TILE_PX + _GAP_PX
    sheet = Image.new("RGB", (columns * width + _GAP_PX, rows * height + _GAP_PX), "white")
    pen, face = ImageDraw.Draw(sheet), font(_TEXT_PX)
    for index, (image, text) in enumerate(images):
        left = _GAP_PX + index % columns * width
        top = _GAP_PX + index // columns * height
        sheet.paste(ImageOps.pad(image, (TILE_PX, TILE_PX), color="#e6e9ee"), (left, top))
        for line, words in enumerate(wrap(one_line(text), face, TILE_PX, max_lines=_LINES)):
            place = (left, top + TILE_PX + _GAP_PX // 2 + line * line_px)
            pen.text(place, words, font=face, fill=INK)
    return sheet
