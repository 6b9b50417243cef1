"""One word's attention painted over its image, with the marks of peaks, cells and sampled paths."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw

from captioner.errors import ImageError
from captioner.visualization.heat import attention_heat, peaks
from captioner.visualization.style import (
    CASING_COLOUR,
    CASING_OPACITY,
    LINE_COLOUR,
    MARKS_IN_CELL,
    MARKS_IN_PICTURE,
    MIN_LINE_PX,
    OCTAVES,
    PATH_COLOURS,
    PEAK_MARKED_FROM,
    RIMS_IN_MARK,
    Layers,
    OverlayStyle,
    scale_octaves,
)

if TYPE_CHECKING:
    from captioner.types import Caption, Geometry

Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels


def word_overlay(
    image: Image.Image, caption: Caption, index: int, style: OverlayStyle
) -> Image.Image:
    """Draw the map of a word over the image, with its marks."""
    return word_panel(Layers(image, style), caption, index)


def word_panel(layers: Layers, caption: Caption, index: int) -> Image.Image:
    """Draw the map of a word over the image of these layers, with its marks."""
    size, smooth = layers.photo.size, layers.style.smooth
    heat = smooth_heat = word_heat(caption, index, size)
    if not smooth:
        heat = word_heat(caption, index, size, smooth=False)
    picture = _paint(layers, heat, smooth_heat)
    draw_marks(ImageDraw.Draw(picture), caption, index, (0, 0, *picture.size))
    return picture


def word_heat(
    caption: Caption, index: int, size: tuple[int, int], *, smooth: bool = True
) -> np.ndarray:
    """Return the heat of a word over an image of this (width, height)."""
    return attention_heat(
        caption.maps[index],
        caption.geometry,
        width_px=size[0],
        height_px=size[1],
        smooth=smooth,
    )


def overlay(
    image: Image.Image, heat: np.ndarray, style: OverlayStyle | str | None = None
) -> Image.Image:
    """Paint heat over an image.

    Args:
        image: Not changed. Resize it once and pass it for every word.
        heat: [height, width] of the image, in multiples of uniform attention.

    Raises:
        ValueError: Heat of another size than the image.
    """
    if heat.shape != (image.height, image.width):
        raise ValueError(f"heat {list(heat.shape)} for {image.height} x {image.width} pixels")
    return _paint(Layers(image.convert("RGB"), OverlayStyle.of(style)), heat, heat)


def _paint(layers: Layers, heat: np.ndarray, smooth_heat: np.ndarray) -> Image.Image:
    """Return the layers by heat, with the lines of the smooth heat where the style has them."""
    octaves = scale_octaves(heat)
    picture = layers.paint((octaves * (255 / OCTAVES) + 0.5).astype(np.uint8))
    if layers.style.lines:
        octaves = octaves if smooth_heat is heat else scale_octaves(smooth_heat)
        casing, ink = map(Image.fromarray, line_coverage(octaves, layers.style))
        if box := casing.getbbox():
            picture.paste(CASING_COLOUR, box, casing.crop(box))
            picture.paste(LINE_COLOUR, box, ink.crop(box))
    return picture


def line_coverage(octaves: np.ndarray, style: OverlayStyle) -> tuple[np.ndarray, np.ndarray]:
    """Return how much of each pixel the lines and their dark seams cover, both uint8.

    Args:
        octaves: As `scale_octaves` returns them, [height, width].

    Returns:
        Of the seams, which lie below, and of the lines.
    """
    octaves = octaves - 1  # above uniform attention: the lines are at whole numbers
    unit = line_unit((octaves.shape[1], octaves.shape[0]))
    levels = [round(math.log2(heat)) for heat, _ in style.lines]
    nearest = np.clip(np.rint(octaves), levels[0], levels[-1])
    padded = np.pad(octaves, 1, mode="edge")
    slope = (padded[1:-1, 2:] - padded[1:-1, :-2]) ** 2
    slope += (padded[2:, 1:-1] - padded[:-2, 1:-1]) ** 2
    # To first order, how many pixels away the line is.
    away = np.abs(octaves - nearest) * 2 / np.sqrt(slope + 1e-8)
    halves = np.zeros(levels[-1] + 1, dtype=np.float32)
    halves[levels] = [max(width * unit, MIN_LINE_PX) / 2 for _, width in style.lines]
    covered = halves[nearest.astype(np.intp)] + 0.5 - away
    ink = np.clip(covered * 255, 0, 255).astype(np.uint8)
    seam = np.clip((covered + casing_px(unit)) * 255, 0, 255) * CASING_OPACITY
    return seam.astype(np.uint8), ink


def line_unit(size: tuple[int, int]) -> float:
    """Return how many pixels the width 1 of LINES has in a picture of this (width, height)."""
    return math.sqrt(size[0] * size[1]) / 200


def casing_px(unit: float) -> float:
    """Return the width of the dark seam on each side of a line."""
    return max(0.8, 0.6 * unit)


def draw_marks(pen: Any, caption: Caption, index: int, box: Box) -> None:
    """Draw a word's sampled paths and sampled cells, or where it has none of those, its peaks.

    Args:
        pen: What draws: `ImageDraw.Draw` of a picture, or a `VectorPage`.
        box: Where the image is on it.
    """
    if caption.paths is not None:
        draw_paths(pen, caption, index, box)
    if caption.cells is not None:
        outline_cells(pen, caption, caption.cells[index], box)
    else:
        for cell in peaks(caption.maps[index], PEAK_MARKED_FROM):
            mark_peak(pen, caption, cell, box)


def mark_peak(pen: Any, caption: Caption, cell: int, box: Box) -> None:
    """Draw a cross on the centre of a cell, as maps of mountains mark a summit."""
    line, rim = mark_px(caption, box)
    x, y = cell_centre(caption, cell, box)
    arm = 3 * line + 1
    for colour, grown in (("#000000", rim), ("#ffffff", 0)):
        for wide, high in ((arm, line // 2), (line // 2, arm)):
            corner = (x - wide - grown, y - high - grown, x + wide + grown, y + high + grown)
            pen.rectangle(corner, fill=colour)


def outline_cells(pen: Any, caption: Caption, cells: np.ndarray, box: Box) -> None:
    """Draw the borders of cells: of the one that each head attended for a word."""
    line, rim = mark_px(caption, box)
    for cell in np.unique(cells).tolist():
        left, top, right, bottom = cell_box(caption, cell, box)
        right, bottom = max(left, right - 1), max(top, bottom - 1)
        # White between black lines shows on every colour.
        grown = (left - rim, top - rim, right + rim, bottom + rim)
        pen.rectangle(grown, outline="#000000", width=line + 2 * rim)
        pen.rectangle((left, top, right, bottom), outline="#ffffff", width=line)


def draw_paths(pen: Any, caption: Caption, index: int, box: Box) -> None:
    """Draw sampled paths up to a word, each in a colour of its own and a little apart.

    A path leads from a ring (the cell of the first word) through the cells of all words between to
    a dot (the cell of this word); its last step is the thickest.
    """
    assert caption.paths is not None
    line, rim = mark_px(caption, box)
    shown = caption.paths[: len(PATH_COLOURS), : index + 1].tolist()
    for number, (path, colour) in enumerate(zip(shown, PATH_COLOURS, strict=False)):
        apart = round((number - (len(shown) - 1) / 2) * 2 * line)
        centres = [cell_centre(caption, cell, box) for cell in path]
        places = [(x + apart, y + apart) for x, y in centres]
        for start, end in pairwise(places[:-1]):
            pen.line((*start, *end), fill=colour, width=1)
        for ink, grown in (("#000000", 2 * rim), (colour, 0)):
            pen.line((*places[max(0, index - 1)], *places[-1]), fill=ink, width=2 * line + grown)
        for (x, y), radius, ink in (
            (places[0], 2 * line + 2 * rim, "#000000"),
            (places[0], 2 * line + rim, colour),
            (places[0], line + rim, "#000000"),
            (places[0], line, "#ffffff"),
            (places[-1], 2 * line + rim, "#000000"),
            (places[-1], 2 * line, colour),
        ):
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=ink)


def cells_are_visible(caption: Caption, cells: np.ndarray) -> bool:
    """Return whether any of these cells lies on the image, not on its letterbox."""
    width, height = caption.geometry.photo_width_px, caption.geometry.photo_height_px
    boxes = [cell_box(caption, cell, (0, 0, width, height)) for cell in np.unique(cells).tolist()]
    return any(x1 > 0 and y1 > 0 and x0 < width and y0 < height for x0, y0, x1, y1 in boxes)


def mark_px(caption: Caption, box: Box) -> tuple[int, int]:
    """Return the widths of a mark's line and of its dark rim, in whole pixels.

    A line is in proportion to the drawing's longer side, but at most to a cell's shorter one: the
    cells of an elongated photo are narrow, and a wider line would fill them.
    """
    rows, columns = caption.maps.shape[-2:]
    size = (box[2] - box[0], box[3] - box[1])
    geometry = caption.geometry.scaled(*size)
    cell_px = min(geometry.width_px / columns, geometry.height_px / rows)
    unit = min(max(size) / MARKS_IN_PICTURE, cell_px / MARKS_IN_CELL)
    line = max(1, int(unit + 0.5))  # as the viewer's Math.round
    return line, max(1, line // RIMS_IN_MARK)


def cell_box(caption: Caption, cell: int, box: Box) -> Box:
    """Return the box of a cell, by its index, where the image is drawn in `box`; whole pixels."""
    rows, columns = caption.maps.shape[-2:]
    geometry = caption.geometry.scaled(box[2] - box[0], box[3] - box[1])
    row, column = divmod(cell, columns)
    x0, y0, x1, y1 = geometry.cell_box_px(row, column, rows, columns)
    return round(x0) + box[0], round(y0) + box[1], round(x1) + box[0], round(y1) + box[1]


def cell_centre(caption: Caption, cell: int, box: Box) -> tuple[int, int]:
    """Return the centre of a cell, as `cell_box` returns its sides."""
    x0, y0, x1, y1 = cell_box(caption, cell, box)
    return (x0 + x1) // 2, (y0 + y1) // 2


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
