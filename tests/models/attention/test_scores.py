"""Each score against a plain loop over cells, with one head and with several."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import plain
import pytest
import torch
from plain import Vector
from pretend_gpu import CUDA, PretendedGPU, move
from torch import Tensor, nn

from captioner.config import AttentionConfig
from captioner.models.attention.attention import Attention, Score, Select, Window
from captioner.models.attention.fused import FEW, additive_scores
from captioner.models.attention.hard import HardSelect
from captioner.models.attention.scores import MonotonicWindow, PredictiveWindow
from captioner.registry import SCORES
from captioner.types import Grid

B, K, L, D, H, A = 2, 3, 6, 5, 8, 4


def build(name: str, heads: int = 1) -> Score:
    config = AttentionConfig(score=name, dim=A, heads=heads)
    more = {"cells": L} if name == "location" else {}
    return SCORES[name](config, query_dim=H, feature_dim=D, **more)


def plain_additive(score: Score, query: Vector, cell: Vector, head: int, number: int) -> float:
    """w . tanh(W_a a + b + W_h h), of the head's own rows."""
    from_query = plain.part(plain.linear(score.query, query), head, score.heads)
    from_cell = plain.part(plain.linear(score.key, cell), head, score.heads)
    energy = plain.part(score.energy.weight[0].tolist(), head, score.heads)
    return plain.dot(energy, [math.tanh(a + b) for a, b in zip(from_query, from_cell, strict=True)])


def plain_dot(score: Score, query: Vector, cell: Vector, head: int, number: int) -> float:
    return plain.dot(
        plain.part(plain.linear(score.query, query), head, score.heads),
        plain.part(plain.linear(score.key, cell), head, score.heads),
    )


def plain_scaled_dot(score: Score, query: Vector, cell: Vector, head: int, number: int) -> float:
    return plain_dot(score, query, cell, head, number) / math.sqrt(A / score.heads)


def plain_general(score: Score, query: Vector, cell: Vector, head: int, number: int) -> float:
    """h . W a; with heads, the parts of h and of W a."""
    mapped = [plain.dot(row, cell) for row in score.key.weight.tolist()]
    return plain.dot(plain.part(query, head, score.heads), plain.part(mapped, head, score.heads))


def plain_cosine(score: Score, query: Vector, cell: Vector, head: int, number: int) -> float:
    a = plain.part(plain.linear(score.query, query), head, score.heads)
    b = plain.part(plain.linear(score.key, cell), head, score.heads)
    cosine = plain.dot(a, b) / math.sqrt(plain.dot(a, a) * plain.dot(b, b))
    return cosine * math.exp(score.log_strength[head].item())


def plain_location(score: Score, query: Vector, cell: Vector, head: int, number: int) -> float:
    return plain.part(plain.linear(score.query, query), head, score.heads)[number]


PLAIN: dict[str, Callable[..., float]] = {
    "additive": plain_additive,
    "concat": plain_additive,
    "dot": plain_dot,
    "scaled_dot": plain_scaled_dot,
    "general": plain_general,
    "cosine": plain_cosine,
    "location": plain_location,
}


def loud(score: Score) -> Score:
    torch.manual_seed(0)
    for parameter in score.parameters():
        nn.init.normal_(parameter)
    return score.double()


def random_photos() -> tuple[Tensor, Tensor]:
    """Queries [B, K, H] and features [B, L, D]."""
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(B, K, H, dtype=torch.double, generator=generator)
    return queries, torch.randn(B, L, D, dtype=torch.double, generator=generator)


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("name", PLAIN)
def test_each_score_is_its_formula_in_a_plain_loop(name: str, heads: int) -> None:
    score, formula = loud(build(name, heads)), PLAIN[name]
    queries, features = random_photos()
    keys = score.keys(features)
    assert keys.shape[:3] == (B, heads, L)
    scores = score(queries, keys)
    assert scores.shape == (B, heads, K, L)
    assert scores.std() > 0.1
    for b, k, head, i in product(range(B), range(K), range(heads), range(L)):
        expected = formula(score, queries[b, k].tolist(), features[b, i].tolist(), head, i)
        assert scores[b, head, k, i].item() == pytest.approx(expected, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("heads", [1, 2])
def test_the_function_that_a_gpu_fuses_is_the_additive_score(heads: int) -> None:
    score = build("additive", heads).double()
    queries = torch.randn(B, heads, K, A // heads, dtype=torch.float64)
    keys = torch.randn(B, heads, L, A // heads, dtype=torch.float64)
    found = additive_scores(queries, keys, score.energy.weight.view(heads, 1, 1, -1))
    torch.testing.assert_close(found, score.compare(queries, keys), rtol=1e-12, atol=1e-12)


def test_a_gpu_s_compiler_is_started_for_training_and_for_many_photos_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    score, compared = build("additive"), list[int]()

    def fused(queries: Tensor, keys: Tensor, weight: Tensor) -> Tensor:
        compared.append(len(keys))
        return additive_scores(queries, keys, weight)

    place = "captioner.models.attention.fused.compiled_additive_scores"
    monkeypatch.setattr(place, lambda: fused)
    with PretendedGPU():
        move(score)
        for photos, searches in ((FEW, True), (FEW + 1, True), (2, False)):
            queries, keys = (torch.randn(photos, 1, n, A).to(CUDA) for n in (K, L))
            with torch.inference_mode(searches):
                score.compare(queries, keys)
    assert compared == [FEW + 1, 2]


ROWS, COLUMNS = 4, 6
CELLS = ROWS * COLUMNS


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
    found = Attention(AttentionConfig(dim=6), query_dim=H, feature_dim=D)
    for parameter in found.parameters():
        nn.init.normal_(parameter)
    found.window, found.select = window, select or found.select
    return found.double().eval()


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
        inside = all(distance <= window.config.radius for distance in distances)
        sigma = window.config.radius / 2
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
        torch.testing.assert_close(attended.weights.sum(-1), torch.ones(B, K).double())
        assert torch.equal(attended.weights == 0, bias == -torch.inf)
        assert 1 < (attended.weights[0, 0] > 0).sum() < CELLS
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
    bias = window(query, Grid(torch.zeros(1, CELLS, D), ROWS, COLUMNS), 0)
    assert ((bias > -torch.inf).sum(-1) >= 1).all()
    halfway = PredictiveWindow(AttentionConfig(radius=0.5), query_dim=H)
    nn.init.zeros_(halfway.centre.weight)  # the centre of an even grid lies between its cells
    bias = halfway(query[:, :1], Grid(torch.zeros(1, CELLS, D), ROWS, COLUMNS), 0)
    inside = (bias[0, 0] > -torch.inf).nonzero().flatten().tolist()
    assert inside == [1 * COLUMNS + 2, 1 * COLUMNS + 3, 2 * COLUMNS + 2, 2 * COLUMNS + 3]


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
        assert bias.shape == (B, K, CELLS)
        assert set(bias.unique().tolist()) <= {0.0, -math.inf}
        expected = plain_local_m(radius, words, word, CELLS)
        assert expected
        for b, k in product(range(B), range(K)):
            assert (bias[b, k] == 0).nonzero().flatten().tolist() == expected
        seen |= set(expected)
        if word == 0:
            assert 0 in expected
        if word >= words:  # through with the grid: the last cell, for ever
            assert expected == plain_local_m(radius, words, 10**6, CELLS)
            assert CELLS - 1 in expected
    if radius * 2 * words >= CELLS + words:
        assert seen == set(range(CELLS)), "a window that is wide enough leaves no cell out"
