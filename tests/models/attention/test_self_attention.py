"""Cells that look at each other: their positions against a loop, and what they see."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from captioner.models.attention.self_attention import GridSelfAttention, grid_positions

ROWS, COLUMNS, D = 3, 4, 8
L = ROWS * COLUMNS
CPU = torch.device("cpu")


def random_layers(layers: int = 2, **settings: Any) -> GridSelfAttention:
    torch.manual_seed(0)
    settings = {"heads": 2, "dropout": 0.0, **settings}
    grid = GridSelfAttention(D, layers, **settings).double().eval()
    for parameter in grid.parameters():  # also those that begin as zero
        nn.init.normal_(parameter, std=0.5)
    return grid


def random_cells(cells: int = L) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, cells, D, dtype=torch.double, generator=generator)


@pytest.mark.parametrize("dim", [4, 8, 20])
@pytest.mark.parametrize(("rows", "columns"), [(3, 4), (1, 5), (6, 1)])
def test_positions_are_a_plain_loop_over_rows_and_columns(
    rows: int, columns: int, dim: int
) -> None:
    """Sines and then cosines of the row, in dim / 2 numbers, and the same of the column."""
    found = grid_positions(rows, columns, dim, device=CPU)
    assert found.shape == (rows * columns, dim)
    half, waves = dim // 2, dim // 4
    for row in range(rows):
        for column in range(columns):
            expected = []
            for place in (row, column):
                angles = [place / 10000 ** (2 * wave / half) for wave in range(waves)]
                expected += [math.sin(angle) for angle in angles]
                expected += [math.cos(angle) for angle in angles]
            assert found[row * columns + column].tolist() == pytest.approx(expected, abs=1e-6)


@torch.no_grad()
def test_without_positions_it_is_torchs_own_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "captioner.models.attention.self_attention.grid_positions",
        lambda *_, **__: torch.zeros(L, D),
    )
    ours, words = random_layers(), random_cells()
    found = ours(words, ROWS, COLUMNS)
    for layer in ours.layers:
        theirs = nn.TransformerEncoderLayer(
            D, 2, 2 * D, 0.0, batch_first=True, norm_first=True
        ).double()
        names = {name.replace("self_attn", "attention"): name for name in theirs.state_dict()}
        theirs.load_state_dict({names[name]: value for name, value in layer.state_dict().items()})
        words = theirs.train()(words)
    torch.testing.assert_close(found, words)


@torch.no_grad()
def test_positions_are_added_to_queries_and_keys_alone() -> None:
    layer: Any = random_layers(1).layers[0]
    nn.init.zeros_(layer.linear2.weight)
    nn.init.zeros_(layer.linear2.bias)
    cells, places = random_cells()[:1], grid_positions(ROWS, COLUMNS, D, device=CPU).double()
    normed = layer.norm1(cells)
    attended, _ = layer.attention(normed + places, normed + places, normed)
    torch.testing.assert_close(layer(cells, places), cells + attended)


def test_new_layers_leave_the_grid_as_it_is_and_learn() -> None:
    layers = GridSelfAttention(D, layers=2, heads=2, dropout=0.1).double()
    cells = random_cells()
    found = layers(cells, ROWS, COLUMNS)
    assert torch.equal(found, cells)
    (found * torch.randn(D)).sum().backward()
    for layer in layers.layers:
        assert layer.attention.out_proj.weight.grad.abs().sum() > 0
