"""Heat painted over a photo, on a colour scale that the caller gives."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from PIL import Image, ImageDraw

from captioner.errors import ConfigError, PhotoError

if TYPE_CHECKING:
    from captioner.grid import Caption, Geometry

ColourMap = Literal["cividis", "viridis"]
COLOUR_MAPS: tuple[ColourMap, ...] = ("cividis", "viridis")  # both safe for the colour-blind
OPACITY = 0.65  # less, and the middle of cividis (a grey) is lost on a grey photo


def overlay(
    photo: Image.Image,
    heat: np.ndarray,
    *,
    vmax: float,
    colour_map: ColourMap = "cividis",
    opacity: float = OPACITY,
) -> Image.Image:
    """Paint heat over a photo; returns a new RGB image.

    The photo is turned grey first, so that colour means heat and nothing else, and the opacity is
    the same everywhere, so that equal heat has an equal tint. Resize the photo once and pass it
    for every word.

    Args:
        heat: [height, width] of the photo, in any unit.
        vmax: heat that takes the last colour; 0 takes the first.
        opacity: share of the colour in the mixture, 0 to 1.

    Raises:
        ConfigError: an unknown colour map, or an opacity outside 0 to 1.
        ValueError: heat of another size than the photo, or vmax not above 0.
    """
    if not 0 <= opacity <= 1:
        raise ConfigError(f"opacity is {opacity}, and has to be between 0 and 1")
    if heat.shape != (photo.height, photo.width):
        raise ValueError(f"heat {list(heat.shape)} for {photo.height} x {photo.width} pixels")
    if not vmax > 0:
        raise ValueError(f"vmax is {vmax}, and has to be above 0")
    levels = np.clip(heat * (255.0 / vmax) + 0.5, 0, 255).astype(np.uint8)
    colours = Image.fromarray(levels)
    colours.putpalette(colour_table(colour_map).tobytes())
    return Image.blend(photo.convert("L").convert("RGB"), colours.convert("RGB"), opacity)


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


def outline_cell(image: Image.Image, caption: Caption, index: int) -> None:
    """Draw the border of the cell sampled for word `index`, on an overlay of any size, in place.

    Raises:
        ValueError: a caption without sampled cells, or a cell that is not in its grid.
    """
    geometry = caption.geometry
    x_scale = image.width / geometry.photo_width_px
    y_scale = image.height / geometry.photo_height_px
    x0, y0, x1, y1 = _sampled_box_px(caption, index)
    left, top = round(x0 * x_scale), round(y0 * y_scale)
    right = max(left, round(x1 * x_scale) - 1)
    bottom = max(top, round(y1 * y_scale) - 1)
    line = max(1, round(max(image.size) / 200))
    draw = ImageDraw.Draw(image)
    # White between black lines shows on every colour.
    draw.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline="black", width=line + 2)
    draw.rectangle((left, top, right, bottom), outline="white", width=line)


def cell_is_visible(caption: Caption, index: int) -> bool:
    """Whether any of the cell sampled for word `index` lies on the photo, not on its letterbox.

    Raises:
        ValueError: a caption without sampled cells, or a cell that is not in its grid.
    """
    x0, y0, x1, y1 = _sampled_box_px(caption, index)
    width, height = caption.geometry.photo_width_px, caption.geometry.photo_height_px
    return x1 > 0 and y1 > 0 and x0 < width and y0 < height


def _sampled_box_px(caption: Caption, index: int) -> tuple[float, float, float, float]:
    if caption.cells is None:
        raise ValueError("the caption has no sampled cells: its attention is soft")
    rows, columns = caption.maps.shape[-2:]
    row, column = np.unravel_index(int(caption.cells[index]), (rows, columns))
    return caption.geometry.cell_box_px(int(row), int(column), rows, columns)


def resized(photo: Image.Image, geometry: Geometry, size: tuple[int, int]) -> Image.Image:
    """The photo at (width, height) as RGB; the photo itself stays as it is.

    Raises:
        PhotoError: a photo of another size than the caption's, such as one whose EXIF orientation
            was not applied.
    """
    expected = (geometry.photo_width_px, geometry.photo_height_px)
    if photo.size != expected:
        raise PhotoError(
            f"is {photo.width} x {photo.height} pixels, but the caption belongs to a photo of "
            f"{expected[0]} x {expected[1]}: pass the upright photo that was captioned"
        )
    rgb = photo if photo.mode == "RGB" else photo.convert("RGB")
    # reducing_gap lets Pillow halve huge photos cheaply before the exact filter.
    return rgb.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
