"""Attention as heat over the image of a word, with the marks of peaks, cells and sampled paths."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image, ImageDraw
from PIL.ImageFont import FreeTypeFont

from captioner.errors import ImageError
from captioner.visualization import style as styles
from captioner.visualization.style import Layers, OverlayStyle, scale_levels, scale_octaves
from captioner.visualization.typography import text_mask

if TYPE_CHECKING:
    from captioner.types import Geometry
    from captioner.visualization.caption import Caption

Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels
_PAD = 2  # cells beyond the border that the cubic reads


def attention_heat(
    cells: np.ndarray, geometry: Geometry, size: tuple[int, int], *, smooth: bool = True
) -> np.ndarray:
    """Lay a map over the cells on the image, drawn at a size of (width, height) pixels.

    Args:
        cells: float [rows, columns], summing to 1; row-major cells of the network's input.
        geometry: Undoes the squash, letterbox, crop or mirror that made the input.
        smooth: Interpolate with Catmull and Rom's cubic, which keeps the values at the centres of
            cells: a line at 4 times uniform encloses the cells above it. Cells are mirrored at the
            border, so that a uniform map stays uniform. Next to a sharp peak the result falls a
            little below 0. False gives every pixel the value of its cell.

    Returns:
        float32 [height, width], in multiples of uniform attention; 0 where the network did not see
        the image.
    """
    g, (rows, columns) = geometry, cells.shape
    x0, x1, left, right = _seen(size[0], g.photo_width_px, g.left_px, g.width_px, columns)
    y0, y1, top, bottom = _seen(size[1], g.photo_height_px, g.top_px, g.height_px, rows)
    shown = cells[:, ::-1] if g.flipped else cells
    around = np.pad(shown.astype(np.float32) * (rows * columns), _PAD, mode="symmetric")
    method = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
    heat = np.zeros(size[::-1], np.float32)
    part = Image.fromarray(around).resize((x1 - x0, y1 - y0), method, (left, top, right, bottom))
    heat[y0:y1, x0:x1] = part
    return heat


def _seen(
    drawn_px: int, image_px: int, start_px: float, length_px: float, cells: int
) -> tuple[int, int, float, float]:
    """Return, along one side, the pixels that the network saw, and where they lie in padded cells.

    The network's input covers length_px of the image's image_px, from start_px.
    """
    step = image_px / drawn_px
    first = min(max(0, math.ceil(start_px / step - 0.5)), drawn_px - 1)
    last = max(min(drawn_px, math.ceil((start_px + length_px) / step - 0.5)), first + 1)
    begin, end = ((x * step - start_px) * cells / length_px + _PAD for x in (first, last))
    return first, last, max(0.0, begin), min(cells + 2.0 * _PAD, end)


def peak(cells: np.ndarray) -> float:
    """Return the attention of the highest cell of a map, in multiples of uniform attention."""
    return float(cells.max()) * cells.size


def peaks(cells: np.ndarray, least: float) -> list[int]:
    """Return the cells of a map's peaks, highest first: 3 at most.

    A peak has `least` times uniform attention or more, at least half of the highest cell's, and
    no neighbour above it.
    """
    around = sliding_window_view(np.pad(cells, 1, constant_values=-1.0), (3, 3))
    enough = max(least / cells.size, float(cells.max()) / 2)
    found = np.flatnonzero((cells >= around.max(axis=(2, 3))) & (cells >= enough))
    return sorted(found.tolist(), key=lambda cell: -cells.ravel()[cell])[:3]


class PixelPage(ImageDraw.ImageDraw):
    """A white page of pixels with the calls of `VectorPage`; a text is drawn once for all pages."""

    def __init__(self, width: int, height: int) -> None:
        self.image = Image.new("RGB", (width, height), "white")
        super().__init__(self.image)

    def text(  # type: ignore[override]  # only what the pictures need
        self, xy: tuple[float, float], text: str, *, fill: str, font: FreeTypeFont, anchor: str
    ) -> None:
        """Write text; anchor: the point of it that is at xy."""
        x, y = int(xy[0]), int(xy[1])
        mask, left, top = text_mask(text, font, anchor, xy[0] - x, xy[1] - y)
        self.image.paste(fill, (x + left, y + top), mask)

    def paste(self, image: Image.Image, box: Box) -> None:
        """Place an image of the size of this box."""
        self.image.paste(image, box)

    def draw_word(self, layers: Layers, caption: Caption, index: int, box: Box) -> None:
        """Draw the map of a word over the photo in a box, with its marks."""
        self.image.paste(word_overlay(layers, caption, index), box)


def word_overlay(layers: Layers, caption: Caption, index: int) -> Image.Image:
    """Draw the map of a word over the image of these layers, with its marks."""
    size, cells = layers.photo.size, caption.maps[index]
    heat = smooth_heat = attention_heat(cells, caption.geometry, size)
    if not layers.style.smooth:
        heat = attention_heat(cells, caption.geometry, size, smooth=False)
    picture = paint(layers, heat, smooth_heat)
    draw_marks(ImageDraw.Draw(picture), caption, index, (0, 0, *size))
    return picture


def paint(layers: Layers, heat: np.ndarray, smooth_heat: np.ndarray) -> Image.Image:
    """Return the layers by heat, with the style's lines of smooth heat (see `attention_heat`)."""
    above, alpha = layers.above(scale_levels(scale_octaves(heat)))
    picture = layers.base.copy()
    picture.paste(above, mask=alpha)
    if layers.style.lines:
        _draw_lines(picture, scale_octaves(smooth_heat), layers.style)
    return picture


def _draw_lines(picture: Image.Image, octaves: np.ndarray, style: OverlayStyle) -> None:
    """Draw lines of equal attention on their dark seams."""
    unit, seam = line_widths(picture.size)
    # All lines are in or close to the box of what has more than uniform attention.
    box = Image.fromarray(octaves > scale_octaves(1.0)).getbbox()
    if box is None:
        return
    near = math.ceil(styles.LINES[-1][1] * unit + seam) + 2
    left, top = max(0, box[0] - near), max(0, box[1] - near)
    around = np.pad(octaves, 1, mode="edge")[top : box[3] + near + 2, left : box[2] + near + 2]
    octaves = around[1:-1, 1:-1]
    slope = (around[1:-1, 2:] - around[1:-1, :-2]) ** 2
    slope += (around[2:, 1:-1] - around[:-2, 1:-1]) ** 2
    pixels_an_octave = 2 / np.sqrt(slope + 1e-8)
    # How far a pixel's outer side lies within the nearest line, to first order.
    covered = np.full_like(octaves, -np.inf)
    for heat, wide in style.lines:
        away = np.abs(octaves - float(scale_octaves(heat))) * pixels_an_octave
        np.maximum(covered, max(wide * unit, styles.MIN_LINE_PX) / 2 + 0.5 - away, out=covered)
    for colour, coverage in (
        (styles.CASING_COLOUR, styles.CASING_OPACITY * np.clip(255 * (covered + seam), 0, 255)),
        (styles.LINE_COLOUR, np.clip(255 * covered, 0, 255)),
    ):
        picture.paste(colour, (left, top), Image.fromarray(coverage.astype(np.uint8)))


def line_widths(size: tuple[int, int]) -> tuple[float, float]:
    """Return the pixels of width 1 of LINES, and of a seam, in a picture of (width, height)."""
    unit = math.sqrt(size[0] * size[1]) / 200
    return unit, max(0.8, 0.6 * unit)


def draw_marks(pen: Any, caption: Caption, index: int, box: Box) -> None:
    """Draw a word's sampled paths and its sampled cells, or where it has no cells, its peaks.

    The pen is `ImageDraw.Draw` of a picture or a `VectorPage`, on which the image is in the box.
    """
    width, height = box[2] - box[0], box[3] - box[1]
    rows, columns = caption.maps.shape[-2:]
    geometry = caption.geometry.scaled(width, height)
    # The cells of an elongated photo are narrow, and a wider line would fill them.
    cell_px = min(geometry.width_px / columns, geometry.height_px / rows)
    unit = min(max(width, height) / styles.MARKS_IN_PICTURE, cell_px / styles.MARKS_IN_CELL)
    line = max(1, int(unit + 0.5))  # as the viewer's Math.round; its dark rim follows
    rim = max(1, line // styles.RIMS_IN_MARK)
    if caption.paths is not None:
        paths = caption.paths[: len(styles.PATH_COLOURS), : index + 1].tolist()
        places = [[cell_centre(caption, cell, box) for cell in path] for path in paths]
        _draw_paths(pen, places, line, rim)
    if caption.cells is None:
        for cell in peaks(caption.maps[index], styles.PEAK_MARKED_FROM):
            x, y = cell_centre(caption, cell, box)
            for colour, grown in (("#000000", rim), ("#ffffff", 0)):  # a cross
                for wide, high in ((3 * line + 1, line // 2), (line // 2, 3 * line + 1)):
                    wide, high = wide + grown, high + grown
                    pen.rectangle((x - wide, y - high, x + wide, y + high), fill=colour)
        return
    for cell in np.unique(caption.cells[index]).tolist():  # one of each head
        left, top, right, bottom = cell_box(caption, cell, box)
        right, bottom = max(left, right - 1), max(top, bottom - 1)
        # White between black lines shows on every colour.
        grown_box = (left - rim, top - rim, right + rim, bottom + rim)
        pen.rectangle(grown_box, outline="#000000", width=line + 2 * rim)
        pen.rectangle((left, top, right, bottom), outline="#ffffff", width=line)


def _draw_paths(pen: Any, paths: list[list[tuple[int, int]]], line: int, rim: int) -> None:
    """Draw paths, each from a ring at the first word's place to a dot at the last word's."""
    for number, (path, colour) in enumerate(zip(paths, styles.PATH_COLOURS, strict=False)):
        apart = round((number - (len(paths) - 1) / 2) * 2 * line)  # so that all are seen
        places = [(x + apart, y + apart) for x, y in path]
        for start, end in pairwise(places[:-1]):
            pen.line((*start, *end), fill=colour, width=1)
        for ink, grown in (("#000000", 2 * rim), (colour, 0)):
            pen.line((*places[-2:][0], *places[-1]), fill=ink, width=2 * line + grown)
        for (x, y), radius, ink in (
            (places[0], 2 * line + 2 * rim, "#000000"),
            (places[0], 2 * line + rim, colour),
            (places[0], line + rim, "#000000"),
            (places[0], line, "#ffffff"),
            (places[-1], 2 * line + rim, "#000000"),
            (places[-1], 2 * line, colour),
        ):
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=ink)


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
    """Return the captioned image at (width, height) as RGB; refuse one that was not captioned."""
    width, height = geometry.photo_width_px, geometry.photo_height_px
    if image.size != (width, height):
        raise ImageError(
            f"is {image.width} x {image.height} pixels, but the caption belongs to a photo of "
            f"{width} x {height}: pass the upright photo that was captioned"
        )
    # reducing_gap lets Pillow halve huge images cheaply before the exact filter.
    return image.convert("RGB").resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
