"""The geometry from grid cells to pixels."""

from __future__ import annotations

import numpy as np
import pytest

from captioner.types import Geometry


@pytest.mark.parametrize("flipped", [False, True])
def test_the_cells_tile_the_rectangle_without_gap_or_overlap(flipped: bool) -> None:
    geometry = Geometry(640, 480, left_px=-20.0, top_px=30.0, width_px=700.0, height_px=333.0)
    geometry = Geometry(**{**vars(geometry), "flipped": flipped})
    rows, columns = 3, 7
    boxes = np.array(
        [[geometry.cell_box_px(r, c, rows, columns) for c in range(columns)] for r in range(rows)]
    )
    if flipped:
        boxes = boxes[:, ::-1]
    np.testing.assert_allclose(boxes[0, 0, :2], (-20, 30))
    np.testing.assert_allclose(boxes[-1, -1, 2:], (680, 363))
    np.testing.assert_allclose(boxes[:, 1:, 0], boxes[:, :-1, 2])
    np.testing.assert_allclose(boxes[1:, :, 1], boxes[:-1, :, 3])
    np.testing.assert_allclose(boxes[..., 2] - boxes[..., 0], 100)
    np.testing.assert_allclose(boxes[..., 3] - boxes[..., 1], 111)
