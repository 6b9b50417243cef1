"""Attention over grid cells as heat over the pixels of the image, in multiples of uniform."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

if TYPE_CHECKING:
    from captioner.types import Geometry

# OpenBLAS computes larger products by several threads, which then wait busily for the next: a sheet
# would cost twice the time of a core.
_ONE_THREAD = 200_000
FLAT_BELOW = 2.0  # a map whose highest cell has less than this, times uniform, counts as flat


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
    (width_px, height_px), (rows, columns) = size, cells.shape
    g = geometry
    across = _weights(width_px, g.photo_width_px, g.left_px, g.width_px, columns, smooth)
    down = _weights(height_px, g.photo_height_px, g.top_px, g.height_px, rows, smooth)
    if geometry.flipped:
        across = across[:, ::-1]
    # The interpolation is separable: two small products.
    lines = down @ (cells.astype(np.float32) * (rows * columns))
    step = max(1, _ONE_THREAD // (width_px * columns))
    return np.concatenate([lines[y : y + step] @ across.T for y in range(0, height_px, step)])


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


@lru_cache(maxsize=16)  # the words of a caption share these
def _weights(
    drawn_px: int, image_px: int, start_px: float, length_px: float, cells: int, smooth: bool
) -> np.ndarray:
    """Return float32 [drawn_px, cells]: shares of one side's cells in each pixel; 0 outside them.

    The network's input covers length_px of the image's image_px, from start_px.
    """
    centres_px = (np.arange(drawn_px) + 0.5) * (image_px / drawn_px)
    positions = (centres_px - start_px) * (cells / length_px)  # in cells
    if smooth:
        cells_around = np.arange(-2, cells + 2)
        distance = np.abs(positions[:, None] - (cells_around + 0.5))
        # Keys 1981, a = -1/2.
        near = (1.5 * distance - 2.5) * distance**2 + 1
        far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
        shares = np.where(distance < 1, near, np.where(distance < 2, far, 0.0))
        mirrored = cells_around % (2 * cells)
        weights = shares @ np.eye(cells)[np.minimum(mirrored, 2 * cells - 1 - mirrored)]
    else:
        weights = np.eye(cells)[np.clip(np.floor(positions), 0, cells - 1).astype(np.int64)]
    weights[(positions < 0) | (positions >= cells)] = 0.0
    return weights.astype(np.float32)
