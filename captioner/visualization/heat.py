"""Attention over grid cells as heat over the pixels of the original photo.

Heat is measured in multiples of uniform attention: 1 is what every point would get if the model
looked everywhere alike, so heat can be compared between words, photos and grids of any size.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from captioner.types import Caption, Geometry

# Half a cell: the Gaussian is about one cell wide at half its height (2.35 sigma = 1.18 cells).
# It is the narrowest that hides the cell borders: their ripple falls to exp(-2 pi^2 sigma^2),
# below 1 %. Twice as wide, it would take most of a single hot cell's height away.
SIGMA_CELLS = 0.5

FLAT_SCALE = 4.0  # smallest top of a colour scale: uniform attention stays in its lowest quarter


def attention_heat(
    maps: np.ndarray,
    geometry: Geometry,
    *,
    width_px: int,
    height_px: int,
    smooth: bool = True,
) -> np.ndarray:
    """Lay maps over the cells on the photo, drawn at a size of width_px x height_px.

    `smooth` is the paper's way (section 5.4): enlarge every cell, then blur with a Gaussian. It is
    computed in closed form, so it does not depend on the size that is drawn, and the row of cells
    is mirrored at its ends, so that a uniform map stays uniform up to the border and no attention
    is lost. Without it every pixel takes the value of the cell that holds its centre.

    Args:
        maps: [..., rows, columns], each summing to 1; row-major cells of the network's input.
        geometry: undoes the squash, letterbox, crop or mirror that made the input.
        width_px, height_px: size at which the whole photo is drawn; any, so that a small panel
            costs little however large the photo is.

    Returns:
        float32 [..., height_px, width_px], in multiples of uniform attention; 0 where the network
        did not see the photo.

    Raises:
        ValueError: maps that are not finite numbers over a grid.
    """
    maps = np.asarray(maps, dtype=np.float32)
    if maps.ndim < 2 or 0 in maps.shape[-2:] or not np.isfinite(maps).all():
        raise ValueError(f"maps need finite numbers [..., rows, columns], not {list(maps.shape)}")
    rows, columns = maps.shape[-2:]
    left, width = float(geometry.left_px), float(geometry.width_px)
    top, height = float(geometry.top_px), float(geometry.height_px)
    across = _weights(width_px, geometry.photo_width_px, left, width, columns, smooth)
    down = _weights(height_px, geometry.photo_height_px, top, height, rows, smooth)
    if geometry.flipped:
        across = across[:, ::-1]
    # The Gaussian and the cells are separable: two small products in place of a blur.
    heat: np.ndarray = (down @ (maps * (rows * columns))) @ across.T
    return heat


def colour_scale(caption: Caption, *, smooth: bool = True) -> float:
    """Top of the one colour scale that all words of a caption share, in multiples of uniform.

    It is the largest heat of any word, but at least FLAT_SCALE: scaled to its own largest value,
    attention that is flat but for noise would look as sharp as attention that found something.
    """
    if not caption.words:
        return FLAT_SCALE
    rows, columns = caption.maps.shape[-2:]
    # Nine samples along a cell find a peak to well within 1 %.
    heat = attention_heat(
        caption.maps,
        caption.geometry,
        width_px=9 * columns,
        height_px=9 * rows,
        smooth=smooth,
    )
    return max(FLAT_SCALE, float(heat.max()))


def ticks(vmax: float, *, at_most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 (times a power of ten) from 0 to vmax, `at_most` of them or fewer.

    >>> ticks(12.3)
    [0.0, 5.0, 10.0]
    >>> ticks(4.0)
    [0.0, 1.0, 2.0, 3.0, 4.0]
    """
    step = 10.0 ** math.floor(math.log10(vmax / at_most))
    steps = (step * factor for factor in (1, 2, 5, 10, 20, 50))
    step = next(step for step in steps if math.floor(vmax / step + 1e-9) + 1 <= at_most)
    return [float(f"{count * step:.6g}") for count in range(math.floor(vmax / step + 1e-9) + 1)]


@lru_cache(maxsize=16)  # the words of a caption share these
def _weights(
    drawn_px: int, photo_px: int, start_px: float, length_px: float, cells: int, smooth: bool
) -> np.ndarray:
    """Share of each cell of one side in the heat of each drawn pixel; float32 [drawn_px, cells].

    The network's input covers length_px of the photo's photo_px, from start_px. Rows sum to 1, or
    to 0 outside it.
    """
    centres_px = (np.arange(drawn_px) + 0.5) * (photo_px / drawn_px)
    positions = (centres_px - start_px) * (cells / length_px)  # in cells
    inside = (positions >= 0) & (positions < cells)
    if smooth:
        # Each cell is a box under the Gaussian, on an endless row of mirror images.
        reach = math.ceil(4 * SIGMA_CELLS)
        edges = np.arange(-reach, cells + reach + 1)
        shares = np.diff(_normal_cdf((edges - positions[:, None]) / SIGMA_CELLS), axis=1)
        mirrored = np.arange(-reach, cells + reach) % (2 * cells)
        mirrored = np.minimum(mirrored, 2 * cells - 1 - mirrored)
        weights = shares @ np.eye(cells)[mirrored]
        weights[inside] /= weights[inside].sum(axis=1, keepdims=True)  # the tails beyond reach
    else:
        nearest = np.clip(np.floor(positions), 0, cells - 1).astype(np.int64)
        weights = np.eye(cells)[nearest]
    weights[~inside] = 0.0
    weights = weights.astype(np.float32)
    weights.setflags(write=False)
    return weights


def _normal_cdf(values: np.ndarray) -> np.ndarray:
    erf = np.array([math.erf(value) for value in (values / math.sqrt(2)).ravel()])
    return 0.5 + 0.5 * erf.reshape(values.shape)
