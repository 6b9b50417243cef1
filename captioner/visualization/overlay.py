"""Heat painted over a photo, on a colour scale that the caller gives."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from PIL import Image, ImageDraw

from captioner.errors import ConfigError, ImageError
from captioner.visualization.heat import ticks

if TYPE_CHECKING:
    from captioner.types import Caption, Geometry

ColourMap = Literal["cividis", "viridis"]
COLOUR_MAPS: tuple[ColourMap, ...] = ("cividis", "viridis")  # both safe for the colour-blind
Style = Literal["colour", "contour", "mask"]
STYLES: tuple[Style, ...] = ("colour", "contour", "mask")
OPACITY = 0.65  # less, and the middle of cividis (a grey) is lost on a grey photo


def overlay(
    photo: Image.Image,
    heat: np.ndarray,
    *,
    vmax: float,
    style: Style = "colour",
    colour_map: ColourMap = "cividis",
    opacity: float = OPACITY,
    threshold: float = 0.0,
) -> Image.Image:
    """Paint heat over a photo; returns a new RGB image.

    Resize the photo once and pass it for every word.

    Args:
        heat: [height, width] of the photo, in any unit.
        vmax: heat that takes the last colour; 0 takes the first.
        style: `colour` turns the photo grey, so that colour means heat and nothing else, and lays
            colours over it, equally opaque everywhere, so that equal heat has an equal tint.
            `contour` draws lines of equal heat on the photo, at `contour_levels`. `mask` keeps
            the photo's colours and dims it where there is little heat.
        opacity: share of the colour in the mixture, 0 to 1; of a mask, how dark it is without
            heat. Lines are always opaque.
        threshold: heat below it is not painted (and is wholly dimmed by a mask); in heat's unit.

    Raises:
        ConfigError: an unknown style or colour map, an opacity outside 0 to 1, or a threshold
            that is not a number from 0 up.
        ValueError: heat of another size than the photo, or vmax not above 0.
    """
    if style not in STYLES:
        raise ConfigError(f"style is {style!r}; the styles are {', '.join(STYLES)}")
    if not 0 <= opacity <= 1:
        raise ConfigError(f"opacity is {opacity}, and has to be between 0 and 1")
    if not 0 <= threshold < math.inf:
        raise ConfigError(f"threshold is {threshold}, and has to be a number from 0 up")
    if heat.shape != (photo.height, photo.width):
        raise ValueError(f"heat {list(heat.shape)} for {photo.height} x {photo.width} pixels")
    if not vmax > 0:
        raise ValueError(f"vmax is {vmax}, and has to be above 0")
    table = colour_table(colour_map)
    if style == "contour":
        return _contours(photo, heat, vmax, table, threshold)
    levels = _levels(heat, vmax)
    below = heat < (threshold or -math.inf)  # without one, whatever the heat may be
    if style == "mask":
        levels[below] = 0
        kept = 1 - opacity * (1 - levels.astype(np.float32) / 255)
        pixels = np.asarray(photo.convert("RGB")) * kept[..., None]
        return Image.fromarray((pixels + 0.5).astype(np.uint8))
    colours = Image.fromarray(levels)
    colours.putpalette(table.tobytes())
    grey = photo.convert("L").convert("RGB")
    painted = Image.blend(grey, colours.convert("RGB"), opacity)
    if below.any():
        painted.paste(grey, mask=Image.fromarray(below))
    return painted


def contour_levels(vmax: float) -> list[float]:
    """Heat of the lines of the style `contour`: evenly spaced round numbers up to vmax.

    >>> contour_levels(12.3)
    [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]
    """
    return ticks(vmax, at_most=9)[1:]


def _levels(heat: np.ndarray, vmax: float) -> np.ndarray:
    """Which of the 256 colours each heat takes; uint8."""
    levels: np.ndarray = np.clip(heat * (255.0 / vmax) + 0.5, 0, 255).astype(np.uint8)
    return levels


def _contours(
    photo: Image.Image, heat: np.ndarray, vmax: float, table: np.ndarray, threshold: float
) -> Image.Image:
    """Lines in the colour of their level, light ones on a dark border and dark ones on a light."""
    levels = contour_levels(vmax)
    step = levels[0]
    nearest = np.clip(np.floor(heat / step + 0.5), 1, len(levels)) * step
    beside = np.pad(heat, 1, mode="edge")
    slope = np.hypot(
        (beside[1:-1, 2:] - beside[1:-1, :-2]) / 2, (beside[2:, 1:-1] - beside[:-2, 1:-1]) / 2
    )
    # To first order, how many pixels away the line is.
    away = np.full(heat.shape, np.inf)
    np.divide(np.abs(heat - nearest), slope, out=away, where=slope > 0)
    half = max(1.0, max(photo.size) / 400)  # of the line's width
    drawn = nearest >= threshold
    ink = np.clip(half + 0.5 - away, 0, 1) * drawn
    border = 0.7 * np.clip(2 * half + 0.5 - away, 0, 1) * drawn
    level = _levels(nearest, vmax)
    pixels = np.asarray(photo.convert("RGB"), dtype=np.float64)
    pixels = pixels + border[..., None] * (np.where(level < 128, 255.0, 0.0)[..., None] - pixels)
    pixels = pixels + ink[..., None] * (table[level] - pixels)
    return Image.fromarray((pixels + 0.5).astype(np.uint8))


@lru_cache(maxsize=len(COLOUR_MAPS))
def colour_table(name: ColourMap) -> np.ndarray:
    """The 256 colours of a colour map, uint8 [256, 3], lowest first.

    Raises:
        ConfigError: a name that is not in COLOUR_MAPS.
    """
    if name not in COLOUR_MAPS:
        raise ConfigError(f"colour_map is {name!r}; the colour maps are {', '.join(COLOUR_MAPS)}")
    from matplotlib import colormaps  # here, because it takes longer to import than all of ours

    return np.asarray(colormaps[name](np.arange(256), bytes=True)[:, :3])


def mark_looks(image: Image.Image, caption: Caption, index: int) -> None:
    """Draw in place what hard attention did for word `index`: its sampled paths, its cell."""
    if caption.paths is not None:
        mark_paths(image, caption, index)
    if caption.cells is not None:
        outline_cell(image, caption, index)


def outline_cell(image: Image.Image, caption: Caption, index: int) -> None:
    """Draw the border of the cell that each head looked at for word `index`, in place.

    image: an overlay of any size.

    Raises:
        ValueError: a caption without such cells, or a cell that is not in its grid.
    """
    if caption.cells is None:
        raise ValueError("the caption has no sampled cells: its attention is soft")
    line = max(1, round(max(image.size) / 200))
    draw = ImageDraw.Draw(image)
    for cell in np.unique(caption.cells[index]).tolist():
        left, top, right, bottom = _scaled(_box_px(caption, cell), image, caption)
        right, bottom = max(left, right - 1), max(top, bottom - 1)
        # White between black lines shows on every colour.
        box = (left - 1, top - 1, right + 1, bottom + 1)
        draw.rectangle(box, outline="black", width=line + 2)
        draw.rectangle((left, top, right, bottom), outline="white", width=line)


def mark_paths(image: Image.Image, caption: Caption, index: int) -> None:
    """Draw, in place, a dot in each cell that the caption's paths sampled for word `index`.

    A dot's area grows with the number of paths that went there; a white line comes from where each
    path was for the word before.

    Raises:
        ValueError: a caption without paths.
    """
    if caption.paths is None:
        raise ValueError("the caption has no sampled paths")
    draw = ImageDraw.Draw(image)
    unit = max(image.size) / 200

    def centre(cell: int) -> tuple[float, float]:
        left, top, right, bottom = _scaled(_box_px(caption, cell), image, caption)
        return (left + right) / 2, (top + bottom) / 2

    if index:
        for before, now in np.unique(caption.paths[:, index - 1 : index + 1], axis=0).tolist():
            draw.line((*centre(before), *centre(now)), fill="white", width=max(1, round(unit / 2)))
    cells, counts = np.unique(caption.paths[:, index], return_counts=True)
    for cell, count in zip(cells.tolist(), counts.tolist(), strict=True):
        x, y = centre(cell)
        radius = unit * (1.5 + 3.5 * (count / len(caption.paths)) ** 0.5)
        box = (x - radius, y - radius, x + radius, y + radius)
        draw.ellipse(box, fill="white", outline="black", width=max(1, round(unit / 2)))


def cell_is_visible(caption: Caption, index: int) -> bool:
    """Whether any of the cells looked at for word `index` lies on the photo, not its letterbox.

    Raises:
        ValueError: a caption without such cells, or a cell that is not in its grid.
    """
    if caption.cells is None:
        raise ValueError("the caption has no sampled cells: its attention is soft")
    width, height = caption.geometry.photo_width_px, caption.geometry.photo_height_px
    boxes = [_box_px(caption, cell) for cell in np.atleast_1d(caption.cells[index]).tolist()]
    return any(x1 > 0 and y1 > 0 and x0 < width and y0 < height for x0, y0, x1, y1 in boxes)


def _box_px(caption: Caption, cell: int) -> tuple[float, float, float, float]:
    rows, columns = caption.maps.shape[-2:]
    row, column = np.unravel_index(cell, (rows, columns))
    return caption.geometry.cell_box_px(int(row), int(column), rows, columns)


def _scaled(
    box_px: tuple[float, float, float, float], image: Image.Image, caption: Caption
) -> tuple[int, int, int, int]:
    """A box of the photo in pixels of a picture of it."""
    x_scale = image.width / caption.geometry.photo_width_px
    y_scale = image.height / caption.geometry.photo_height_px
    x0, y0, x1, y1 = box_px
    return round(x0 * x_scale), round(y0 * y_scale), round(x1 * x_scale), round(y1 * y_scale)


def resized(photo: Image.Image, geometry: Geometry, size: tuple[int, int]) -> Image.Image:
    """The photo at (width, height) as RGB; the photo itself stays as it is.

    Raises:
        ImageError: a photo of another size than the caption's, such as one whose EXIF orientation
            was not applied.
    """
    expected = (geometry.photo_width_px, geometry.photo_height_px)
    if photo.size != expected:
        raise ImageError(
            f"is {photo.width} x {photo.height} pixels, but the caption belongs to a photo of "
            f"{expected[0]} x {expected[1]}: pass the upright photo that was captioned"
        )
    rgb = photo if photo.mode == "RGB" else photo.convert("RGB")
    # reducing_gap lets Pillow halve huge photos cheaply before the exact filter.
    return rgb.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
