"""One word's attention painted over its image, with the cells that hard attention sampled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from captioner.errors import ImageError
from captioner.visualization.heat import attention_heat, peak
from captioner.visualization.style import (
    CONTOUR_LEVELS,
    LINES_IN_CELL,
    LINES_IN_PICTURE,
    MOST_LINES,
    PEAK_MARKED_FROM,
    RIMS_IN_LINE,
    SCALE_LOW,
    OverlayStyle,
    colour_table,
    lookup_table,
    scale_levels,
)

if TYPE_CHECKING:
    from captioner.types import Caption, Geometry


def word_overlay(
    image: Image.Image, caption: Caption, index: int, style: OverlayStyle
) -> Image.Image:
    """Draw the map of a word over the image, and the cells that hard attention sampled."""
    heat = attention_heat(
        caption.maps[index],
        caption.geometry,
        width_px=image.width,
        height_px=image.height,
        smooth=style.smooth,
    )
    picture = overlay(image, heat, style)
    mark_cells(picture, caption, index)
    return picture


def overlay(image: Image.Image, heat: np.ndarray, style: OverlayStyle | None = None) -> Image.Image:
    """Paint heat over an image.

    Args:
        image: Not changed. Resize it once and pass it for every word.
        heat: [height, width] of the image, in multiples of uniform attention.

    Raises:
        ValueError: Heat of another size than the image.
    """
    style = style or OverlayStyle()
    if heat.shape != (image.height, image.width):
        raise ValueError(f"heat {list(heat.shape)} for {image.height} x {image.width} pixels")
    if style.kind == "contour":
        return _contours(image, heat, style)
    levels = scale_levels(heat)
    below = heat < style.threshold
    grey = style.kind == "colour"  # colour then means attention and nothing else
    source = np.asarray(image.convert("L").convert("RGB") if grey else image.convert("RGB"))
    if not grey:
        levels[below] = 0
    table = lookup_table(style.kind, style.colour_map, style.strength)
    rows = levels.astype(np.uint16) << 8
    pixels = np.empty_like(source)
    for channel in range(3):
        np.take(
            table[channel].ravel(),
            rows | source[..., channel],
            out=pixels[..., channel],
            mode="clip",
        )
    if grey and style.threshold:
        pixels[below] = source[below]
    return Image.fromarray(pixels)


def _contours(image: Image.Image, heat: np.ndarray, style: OverlayStyle) -> Image.Image:
    """Draw lines in the colour of their level, light ones on a dark border and dark on a light."""
    # In octaves, in which the levels are evenly spaced; what has no attention is far below them.
    octaves = np.log2(np.maximum(heat, SCALE_LOW / 4))
    first, last = np.log2(CONTOUR_LEVELS[0]), np.log2(CONTOUR_LEVELS[-1])
    nearest = np.clip(np.floor(octaves + 0.5), first, last)
    padded = np.pad(octaves, 1, mode="edge")
    slope = np.hypot(
        (padded[1:-1, 2:] - padded[1:-1, :-2]) / 2, (padded[2:, 1:-1] - padded[:-2, 1:-1]) / 2
    )
    # To first order, how many pixels away the line is.
    distance = np.full(heat.shape, np.inf)
    np.divide(np.abs(octaves - nearest), slope, out=distance, where=slope > 0)
    # Half the line's width: by the picture's longer side, but thin on an elongated picture.
    half = max(1.0, min(max(image.size) / 400, min(image.size) / 100))
    drawn = 2**nearest >= style.threshold
    ink = np.clip(half + 0.5 - distance, 0, 1) * drawn
    border = 0.7 * np.clip(2 * half + 0.5 - distance, 0, 1) * drawn
    levels = scale_levels(2**nearest)
    pixels = np.asarray(image.convert("RGB"), dtype=np.float64)
    pixels = pixels + border[..., None] * (np.where(levels < 128, 255.0, 0.0)[..., None] - pixels)
    pixels = pixels + ink[..., None] * (colour_table(style.colour_map)[levels] - pixels)
    return Image.fromarray((pixels + 0.5).astype(np.uint8))


def mark_cells(image: Image.Image, caption: Caption, index: int) -> None:
    """Draw, in place, a word's sampled paths and sampled cell; else mark its most attended cell."""
    if caption.paths is not None:
        draw_paths(image, caption, frequent_steps(caption.paths, index))
    if caption.cells is not None:
        outline_cells(image, caption, caption.cells[index])
    elif peak(caption.maps[index]) >= PEAK_MARKED_FROM:
        mark_peak(image, caption, index)


def mark_peak(image: Image.Image, caption: Caption, index: int) -> None:
    """Draw, in place, the four corners of the cell that a word attends to most.

    On a photo with bright and dark parts, brightness alone does not show where the maximum is.
    """
    most = int(caption.maps[index].argmax())
    left, top, right, bottom = map(round, _box_px(caption, most, image.size))
    line, rim = _line_px(image, caption)
    wide, high = (max(line, int(0.3 * side + 0.5)) for side in (right - left, bottom - top))
    draw = ImageDraw.Draw(image)
    for colour, grown in (("black", rim), ("white", 0)):
        for width, height in ((wide, line), (line, high)):
            for x in (left, right - width):
                for y in (top, bottom - height):
                    box = (x - grown, y - grown, x + width + grown - 1, y + height + grown - 1)
                    draw.rectangle(box, fill=colour)


def outline_cells(image: Image.Image, caption: Caption, cells: np.ndarray) -> None:
    """Draw, in place, the borders of cells: of the one that each head attended for a word."""
    line, rim = _line_px(image, caption)
    draw = ImageDraw.Draw(image)
    for cell in np.unique(cells).tolist():
        left, top, right, bottom = map(round, _box_px(caption, cell, image.size))
        right, bottom = max(left, right - 1), max(top, bottom - 1)
        # White between black lines shows on every colour.
        box = (left - rim, top - rim, right + rim, bottom + rim)
        draw.rectangle(box, outline="black", width=line + 2 * rim)
        draw.rectangle((left, top, right, bottom), outline="white", width=line)


def frequent_steps(paths: np.ndarray, index: int) -> list[tuple[int, int, int]]:
    """Return the most frequent steps of sampled paths to a word, at most MOST_LINES.

    Args:
        paths: int [M, T], cells of M paths.
        index: Position of the word; the steps to the first word lead from a cell to itself.

    Returns:
        (cell of the word before, cell of this word, number of paths), most frequent first; equal
        counts in order of their cells.
    """
    before = paths[:, max(0, index - 1)]
    counts = Counter(zip(before.tolist(), paths[:, index].tolist(), strict=True))
    steps = sorted((-count, start, end) for (start, end), count in counts.items())
    return [(start, end, -count) for count, start, end in steps[:MOST_LINES]]


def draw_paths(image: Image.Image, caption: Caption, steps: Sequence[tuple[int, int, int]]) -> None:
    """Draw, in place, steps of sampled paths to a word, as `frequent_steps` returns them.

    A line leads from a ring (the cell of the word before) to a dot (the cell of this word); line
    and dot are the thicker the more paths took the step. A step that stays is a ring with a dot.
    """
    draw = ImageDraw.Draw(image)
    unit = _line_unit(image, caption)
    casing = max(1, round(unit / 2))

    def centre(cell: int) -> tuple[float, float]:
        left, top, right, bottom = map(round, _box_px(caption, cell, image.size))
        return (left + right) / 2, (top + bottom) / 2

    def disc(cell: int, radius: float, **colours: str) -> None:
        x, y = centre(cell)
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), width=casing, **colours)

    widths = [unit * (0.4 + 2.6 * count / steps[0][2]) for _, _, count in steps]
    for colour, grown in (("black", 2 * casing), ("white", 0)):
        for (start, end, _), width in zip(steps, widths, strict=True):
            thick = max(1, round(width)) + grown
            if start != end:
                draw.line((*centre(start), *centre(end)), fill=colour, width=thick)
    ring = 3.5 * unit
    for start, _, _ in steps:
        disc(start, ring + casing, outline="black")
        disc(start, ring, outline="white")
        disc(start, ring - casing, outline="black")
    ends = Counter[int]()
    for _, end, count in steps:
        ends[end] += count
    for end, count in ends.items():
        radius = unit * (1.5 + 1.5 * count / max(ends.values()))
        disc(end, radius, fill="white", outline="black")


def cells_are_visible(caption: Caption, cells: np.ndarray) -> bool:
    """Return whether any of these cells lies on the image, not on its letterbox."""
    width, height = size = (caption.geometry.photo_width_px, caption.geometry.photo_height_px)
    boxes = [_box_px(caption, cell, size) for cell in np.unique(cells).tolist()]
    return any(x1 > 0 and y1 > 0 and x0 < width and y0 < height for x0, y0, x1, y1 in boxes)


def _line_unit(image: Image.Image, caption: Caption) -> float:
    """Return the width of a mark's line in pixels of a drawing, not rounded.

    It is in proportion to the drawing's longer side, but at most to a cell's shorter one: the cells
    of an elongated photo are narrow, and a wider line would fill them.
    """
    rows, columns = caption.maps.shape[-2:]
    geometry = caption.geometry.scaled(*image.size)
    cell_px = min(geometry.width_px / columns, geometry.height_px / rows)
    return min(max(image.size) / LINES_IN_PICTURE, cell_px / LINES_IN_CELL)


def _line_px(image: Image.Image, caption: Caption) -> tuple[int, int]:
    """Return the widths of a mark's white line and of its black rim, in whole pixels."""
    line = max(1, int(_line_unit(image, caption) + 0.5))  # as the viewer's Math.round
    return line, max(1, line // RIMS_IN_LINE)


def _box_px(
    caption: Caption, cell: int, size: tuple[int, int]
) -> tuple[float, float, float, float]:
    """Return the box (x0, y0, x1, y1) of a cell, by its index, in a drawing of this size."""
    rows, columns = caption.maps.shape[-2:]
    row, column = np.unravel_index(cell, (rows, columns))
    return caption.geometry.scaled(*size).cell_box_px(int(row), int(column), rows, columns)


def scaled_size(size: tuple[int, int], scale: float) -> tuple[int, int]:
    """Return (width, height) times a scale, in whole pixels, at least one each."""
    width, height = size
    return max(1, round(width * scale)), max(1, round(height * scale))


def resize_captioned(image: Image.Image, geometry: Geometry, size: tuple[int, int]) -> Image.Image:
    """Return the captioned image at (width, height) as RGB; it is not changed.

    Raises:
        ImageError: An image of another size than the caption's, such as one whose EXIF orientation
            was not applied.
    """
    expected = (geometry.photo_width_px, geometry.photo_height_px)
    if image.size != expected:
        raise ImageError(
            f"is {image.width} x {image.height} pixels, but the caption belongs to a photo of "
            f"{expected[0]} x {expected[1]}: pass the upright photo that was captioned"
        )
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    # reducing_gap lets Pillow halve huge images cheaply before the exact filter.
    return rgb.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
