"""`attention.key_smoothing`: scores compare averages of neighbouring cells."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import plain
import pytest
import torch

from captioner.config import AttentionConfig
from captioner.models.attention.attention import Attention
from captioner.models.attention.self_attention import smoothed

B, ROWS, COLUMNS, D, H = 2, 3, 4, 6, 5


@pytest.mark.parametrize("weight", [0.3, 0.5, 1.0])
@pytest.mark.parametrize(("rows", "columns"), [(3, 4), (1, 5), (1, 1)])
def test_a_cell_becomes_the_weighted_mean_of_its_neighbours(
    rows: int, columns: int, weight: float
) -> None:
    grid = plain.grid(B, rows, columns, D)
    found = smoothed(grid, weight)
    for b, row, column in product(range(B), range(rows), range(columns)):
        total, mean = 0.0, torch.zeros(D, dtype=torch.double)
        for down, right in product((-1, 0, 1), repeat=2):
            share = weight ** (abs(down) + abs(right))
            at_row = min(max(row + down, 0), rows - 1)
            at_column = min(max(column + right, 0), columns - 1)
            mean += share * grid.features[b, at_row * columns + at_column]
            total += share
        expected = (mean / total).tolist()
        assert found[b, row * columns + column].tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("select", ["soft", "hard"])
@torch.no_grad()
def test_keys_are_smoothed_and_values_are_not(select: Any, heads: int) -> None:
    torch.manual_seed(0)
    config = AttentionConfig(select=select, dim=4, heads=heads, key_smoothing=0.5)
    sizes: Any = {"query_dim": H, "feature_dim": D}
    smoothing = Attention(config, **sizes).double().eval()
    unsmoothed = Attention(replace(config, key_smoothing=0.0), **sizes).double().eval()
    unsmoothed.load_state_dict(smoothing.state_dict())
    grid = plain.grid(B, ROWS, COLUMNS, D)
    memory = smoothing.prepare(grid)
    blurred = unsmoothed.prepare(replace(grid, features=smoothed(grid, 0.5)))
    assert torch.equal(memory.keys, blurred.keys)
    assert not torch.allclose(memory.keys, unsmoothed.prepare(grid).keys)
    assert torch.equal(memory.grid.features, grid.features)
    if heads > 1:
        assert torch.equal(memory.values, unsmoothed.prepare(grid).values)
