"""Cells that look at each other: their positions against a loop, and what they see."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from captioner.encoders import GridSelfAttention
from captioner.encoders.self_attention import grid_positions

ROWS, COLUMNS, D = 3, 4, 8
L = ROWS * COLUMNS
CPU = torch.device("cpu")


def random_layers(layers: int = 2, **settings: Any) -> GridSelfAttention:
    torch.manual_seed(0)
    settings = {"heads": 2, "feedforward_dim": 12, "dropout": 0.0, **settings}
    return GridSelfAttention(dim=D, layers=layers, **settings).double().eval()


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


def test_no_two_cells_have_the_same_position() -> None:
    places = grid_positions(14, 14, D, device=CPU)
    distances = torch.cdist(places, places) + 10 * torch.eye(196)
    assert distances.min() > 0.05


@torch.no_grad()
def test_it_is_torchs_own_layers_after_the_positions_are_added() -> None:
    ours = random_layers()
    cells = random_cells()
    words = cells + grid_positions(ROWS, COLUMNS, D, device=CPU)
    for layer in ours.layers.layers:
        attention: Any = layer
        normed = attention.norm1(words)
        words = words + attention.self_attn(normed, normed, normed, need_weights=False)[0]
        normed = attention.norm2(words)
        words = words + attention.linear2(torch.relu(attention.linear1(normed)))
    assert ours.layers.norm is not None
    expected = ours.layers.norm(words)
    torch.testing.assert_close(ours(cells, ROWS, COLUMNS), expected)
    torch.testing.assert_close(ours.train()(cells, ROWS, COLUMNS), expected)


@torch.no_grad()
def test_every_cell_sees_every_other_and_no_other_photo() -> None:
    layers, cells = random_layers(1), random_cells()
    expected = layers(cells, ROWS, COLUMNS)
    for cell in range(L):
        changed = cells.clone()
        changed[0, cell, 0] += 1
        change = (layers(changed, ROWS, COLUMNS) - expected).abs().amax(-1)
        assert (change[0] > 1e-6).all()
        assert change[1].max() == 0


@torch.no_grad()
def test_cells_know_where_they_are() -> None:
    """Without positions a permutation of the cells would permute what comes out."""
    layers, cells = random_layers(), random_cells()
    order = torch.randperm(L, generator=torch.Generator().manual_seed(0))
    found = layers(cells[:, order], ROWS, COLUMNS)
    assert (found - layers(cells, ROWS, COLUMNS)[:, order]).abs().max() > 1e-2
    turned = layers(cells, COLUMNS, ROWS)
    assert (turned - layers(cells, ROWS, COLUMNS)).abs().max() > 1e-2


def test_a_grid_of_another_size_is_read_too() -> None:
    assert random_layers()(random_cells(30), 5, 6).shape == (2, 30, D)


def test_layers_begin_with_different_weights() -> None:
    first, second = random_layers().layers.layers
    for (name, one), other in zip(first.named_parameters(), second.parameters(), strict=True):
        if one.dim() > 1:
            assert not torch.equal(one, other), name


def test_dropout_acts_in_training_only() -> None:
    layers, cells = random_layers(dropout=0.5), random_cells()
    for training in (True, False):
        layers.train(training)
        found = [layers(cells, ROWS, COLUMNS) for _ in range(2)]
        assert torch.equal(*found) == (not training)


def test_its_every_weight_learns() -> None:
    layers: nn.Module = random_layers().train()
    (layers(random_cells(), ROWS, COLUMNS) * torch.randn(D)).sum().backward()
    for name, parameter in layers.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
