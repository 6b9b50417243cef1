"""Luong's local windows on a grid, against plain loops over rows and columns."""

from __future__ import annotations

import math
from itertools import product

import plain
import pytest
import torch
from plain import Vector
from torch import Tensor, nn

from captioner.config import AttentionConfig
from captioner.models.attention.attention import (
    AdditiveScore,
    Attention,
    HardSelect,
    Select,
    SoftSelect,
    Window,
)
from captioner.models.attention.windows import MonotonicWindow, PredictiveWindow
from captioner.types import Grid

B, K, ROWS, COLUMNS, D, H = 3, 4, 4, 6, 5, 7
L = ROWS * COLUMNS


def random_grid(rows: int = ROWS, columns: int = COLUMNS) -> Grid:
    return plain.grid(B, rows, columns, D)


def random_query(beams: int = K) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(B, beams, H, dtype=torch.double, generator=generator)


def local_p(radius: float) -> PredictiveWindow:
    """Whose centres are all over the grid."""
    torch.manual_seed(3)
    window = PredictiveWindow(AttentionConfig(radius=radius), query_dim=H)
    for parameter in window.parameters():
        nn.init.normal_(parameter, std=1.5)
    return window.double()


def attention(window: Window, select: Select | HardSelect | None = None) -> Attention:
    torch.manual_seed(4)
    score = AdditiveScore(AttentionConfig(dim=6), query_dim=H, feature_dim=D)
    for parameter in score.parameters():
        nn.init.normal_(parameter)
    return Attention(score, window, select or SoftSelect(AttentionConfig())).double().eval()


def plain_centre(window: PredictiveWindow, query: Vector, rows: int, columns: int) -> Vector:
    """Equation 9 for each axis: S * sigmoid(v . tanh(W h)), S the axis's last index."""
    hidden = [math.tanh(x) for x in plain.linear(window.hidden, query)]
    down, right = (plain.sigmoid(x) for x in plain.linear(window.centre, hidden))
    return [(rows - 1) * down, (columns - 1) * right]


def plain_local_p(window: PredictiveWindow, query: Vector, rows: int, columns: int) -> Vector:
    """Logarithms of the Gaussian of equation 10, minus infinity outside of the window."""
    centre = plain_centre(window, query, rows, columns)
    bias = []
    for cell in product(range(rows), range(columns)):
        distances = [abs(at - middle) for at, middle in zip(cell, centre, strict=True)]
        inside = all(distance <= window.radius for distance in distances)
        sigma = window.radius / 2
        gaussian = math.prod(math.exp(-(x**2) / (2 * sigma**2)) for x in distances)
        bias.append(math.log(gaussian) if inside else -math.inf)
    return bias


@pytest.mark.parametrize(("rows", "columns"), [(ROWS, COLUMNS), (1, 5), (7, 1), (1, 1)])
@pytest.mark.parametrize("radius", [0.5, 1.7, 20.0])
def test_local_p_is_a_plain_loop_over_rows_and_columns(
    radius: float, rows: int, columns: int
) -> None:
    window, query = local_p(radius), random_query()
    bias = window(query, random_grid(rows, columns), 0)
    assert bias is not None
    assert bias.shape == (B, K, rows * columns)
    for b, k in product(range(B), range(K)):
        expected = plain_local_p(window, query[b, k].tolist(), rows, columns)
        assert bias[b, k].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    "window", [local_p(1.2), MonotonicWindow(AttentionConfig(radius=2, words=5), query_dim=H)]
)
def test_maps_are_distributions_inside_of_the_window(window: Window) -> None:
    module, grid, query = attention(window), random_grid(), random_query().requires_grad_()
    for position in (0, 3, 40):
        attended = module(query, module.prepare(grid), position)
        bias = window(query, grid, position)
        assert bias is not None
        torch.testing.assert_close(attended.weights.sum(-1), torch.ones(B, K).double())
        assert torch.equal(attended.weights == 0, bias == -torch.inf)
        assert 1 < (attended.weights[0, 0] > 0).sum() < L
        free = module.score(query, module.score.keys(grid.features))[:, 0]
        expected = torch.softmax(free + bias, -1)
        torch.testing.assert_close(attended.weights, expected)
        torch.testing.assert_close(attended.entropy, torch.special.entr(expected).sum(-1))
        attended.entropy.sum().backward()
        assert torch.isfinite(query.grad).all()


def test_no_window_is_ever_empty_wherever_the_centre_is() -> None:
    window = local_p(0.5).float()
    with torch.no_grad():
        window.hidden.weight.normal_(std=10)
        window.centre.weight.normal_(std=3)
    query = torch.randn(1, 3000, H)
    bias = window(query, Grid(torch.zeros(1, L, D), ROWS, COLUMNS), 0)
    assert bias is not None
    assert ((bias > -torch.inf).sum(-1) >= 1).all()
    halfway = PredictiveWindow(AttentionConfig(radius=0.5), query_dim=H)
    nn.init.zeros_(halfway.centre.weight)  # the centre of an even grid lies between its cells
    bias = halfway(query[:, :1], Grid(torch.zeros(1, L, D), ROWS, COLUMNS), 0)
    assert bias is not None
    inside = (bias[0, 0] > -torch.inf).nonzero().flatten().tolist()
    assert inside == [1 * COLUMNS + 2, 1 * COLUMNS + 3, 2 * COLUMNS + 2, 2 * COLUMNS + 3]


# --- local-m --------------------------------------------------------------------------------------


def plain_local_m(radius: float, words: int, word: int, cells: int) -> list[int]:
    """The cells that word t attends to, in reading order."""
    place = min(word * cells / words, cells - 1)
    return [cell for cell in range(cells) if abs(cell - place) <= radius]


@pytest.mark.parametrize("words", [1, 5, 40])
@pytest.mark.parametrize("radius", [0.5, 2.5])
def test_local_m_goes_through_the_grid_in_reading_order(radius: float, words: int) -> None:
    window = MonotonicWindow(AttentionConfig(radius=radius, words=words), query_dim=H)
    query, grid = random_query(), random_grid()
    seen: set[int] = set()
    for word in range(words + 4):
        bias = window(query, grid, word)
        assert bias is not None
        assert bias.shape == (B, K, L)
        assert set(bias.unique().tolist()) <= {0.0, -math.inf}
        expected = plain_local_m(radius, words, word, L)
        assert expected
        for b, k in product(range(B), range(K)):
            assert (bias[b, k] == 0).nonzero().flatten().tolist() == expected
        seen |= set(expected)
        if word == 0:
            assert 0 in expected
        if word >= words:  # through with the grid: the last cell, for ever
            assert expected == plain_local_m(radius, words, 10**6, L)
            assert L - 1 in expected
    if radius * 2 * words >= L + words:
        assert seen == set(range(L)), "a window that is wide enough leaves no cell out"
