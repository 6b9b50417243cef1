"""Attention over grid cells as heat over the pixels of the original image.

Heat is measured in multiples of uniform attention: 1 is what every point would get if attention
were spread evenly, so heat can be compared between words, images and grids of any size.
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

FLAT_BELOW = 2.0  # a map whose highest cell has less than this, times uniform, counts as flat


def attention_heat(
    maps: np.ndarray,
    geometry: Geometry,
    *,
    width_px: int,
    height_px: int,
    smooth: bool = True,
) -> np.ndarray:
    """Lay maps over the cells on the image, drawn at a size of width_px x height_px.

    Args:
        maps: [..., rows, columns], each summing to 1; row-major cells of the network's input.
        geometry: Undoes the squash, letterbox, crop or mirror that made the input.
        width_px: Width at which the image is drawn; any, so that a small panel costs little
            however large the image is.
        smooth: Enlarge every cell, then blur with a Gaussian, as the paper does (section 5.4).
            It is computed in closed form, so it does not depend on the size that is drawn, and
            the row of cells is mirrored at its ends, so that a uniform map stays uniform up to
            the border and no attention is lost. False gives every pixel the value of the cell
            that holds its centre.

    Returns:
        float32 [..., height_px, width_px], in multiples of uniform attention; 0 where the network
        did not see the image.

    Raises:
        ValueError: Maps that are not finite numbers over a grid.
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
    return (down @ (maps * (rows * columns))) @ across.T


def peak(cells: np.ndarray) -> float:
    """Return the attention of the highest cell of a map, in multiples of uniform attention."""
    return float(cells.max()) * cells.size


def is_flat(caption: Caption) -> bool:
    """Return whether every map of a caption stays below FLAT_BELOW times uniform attention."""
    return all(peak(cells) < FLAT_BELOW for cells in caption.maps)


def cell_profile(steps_per_cell: int) -> np.ndarray:
    """Return how much of a cell's attention reaches a point, by the distance to its centre.

    Returns:
        float64, one value every 1 / steps_per_cell cells from distance 0, along one side, up to
        where less than 1e-4 is left.
    """
    distance = np.arange(0, 2.5 + 1e-9, 1 / steps_per_cell)
    return _normal_cdf((distance + 0.5) / SIGMA_CELLS) - _normal_cdf((distance - 0.5) / SIGMA_CELLS)


@lru_cache(maxsize=16)  # the words of a caption share these
def _weights(
    drawn_px: int, image_px: int, start_px: float, length_px: float, cells: int, smooth: bool
) -> np.ndarray:
    """Return the share of each cell of one side in the heat of each drawn pixel.

    The network's input covers length_px of the image's image_px, from start_px.

    Returns:
        float32 [drawn_px, cells]; rows sum to 1, or to 0 outside the input.
    """
    centres_px = (np.arange(drawn_px) + 0.5) * (image_px / drawn_px)
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
    """Return the cumulative distribution of the standard normal at each value."""
    return 0.5 + 0.5 * np.vectorize(math.erf, otypes=[float])(values / math.sqrt(2))
