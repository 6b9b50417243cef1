"""Equations 4 to 6 and 13 of Show, Attend and Tell against plain loops, and what beams share."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from captioner.attention import AdditiveScore, Attention, GlobalWindow, Memory, SoftSelect
from captioner.grid import Grid

B, K, ROWS, COLUMNS, D, H, A = 3, 2, 2, 3, 5, 4, 6
L = ROWS * COLUMNS


def random_attention(seed: int = 0, window: nn.Module | None = None) -> tuple[Attention, Grid]:
    torch.manual_seed(seed)
    score = AdditiveScore(query_dim=H, feature_dim=D, attention_dim=A)
    for parameter in score.parameters():
        nn.init.normal_(parameter)
    attention = Attention(score, window or GlobalWindow(), SoftSelect()).double()
    return attention, Grid(torch.randn(B, L, D, dtype=torch.double), ROWS, COLUMNS)


def random_query(beams: int = K) -> Tensor:
    return torch.randn(B, beams, H, dtype=torch.double)


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def plain_energy(score: AdditiveScore, cell: list[float], query: list[float]) -> float:
    """e_i = w . tanh(W_a a_i + b + W_h h)."""
    total = 0.0
    for unit in range(A):
        from_cell = dot(score.key.weight[unit].tolist(), cell) + score.key.bias[unit].item()
        from_query = dot(score.query.weight[unit].tolist(), query)
        total += score.energy.weight[0, unit].item() * math.tanh(from_cell + from_query)
    return total


def plain_softmax(energies: list[float]) -> list[float]:
    largest = max(energies)
    powers = [math.exp(energy - largest) for energy in energies]
    return [power / sum(powers) for power in powers]


def test_additive_scores_are_the_papers_in_a_plain_loop() -> None:
    attention, grid = random_attention()
    query = random_query()
    scores = attention.score(query, attention.score.keys(grid.features))
    assert scores.shape == (B, K, L)
    for b in range(B):
        for k in range(K):
            for i in range(L):
                expected = plain_energy(
                    attention.score, grid.features[b, i].tolist(), query[b, k].tolist()
                )
                assert scores[b, k, i].item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_map_entropy_and_context_are_the_papers_in_a_plain_loop() -> None:
    torch.manual_seed(1)
    scores = 3 * torch.randn(B, K, L, dtype=torch.double)
    values = torch.randn(B, L, D, dtype=torch.double)
    glimpse = SoftSelect()(scores, values)
    for b in range(B):
        for k in range(K):
            expected = plain_softmax(scores[b, k].tolist())
            assert glimpse.map[b, k].tolist() == pytest.approx(expected, rel=1e-12)
            entropy = -sum(share * math.log(share) for share in expected)
            assert glimpse.entropy[b, k].item() == pytest.approx(entropy, rel=1e-12)
            for d in range(D):
                context = sum(expected[i] * values[b, i, d].item() for i in range(L))
                assert glimpse.context[b, k, d].item() == pytest.approx(context, abs=1e-12)
    assert glimpse.cells is None
    assert glimpse.beta is None
    assert glimpse.log_prob.tolist() == [[0.0] * K] * B


def test_the_gradient_of_each_part_of_a_glimpse_is_the_numerical_one() -> None:
    scores = 3 * torch.randn(B, K, L, dtype=torch.double)
    values = torch.randn(B, L, D, dtype=torch.double)

    def parts(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        glimpse = SoftSelect()(scores, values)
        return glimpse.context, glimpse.map, glimpse.entropy

    assert torch.autograd.gradcheck(parts, (scores.requires_grad_(), values.requires_grad_()))


def test_scores_of_any_size_give_a_map_that_sums_to_one_and_a_finite_entropy_and_gradient() -> None:
    scores = torch.tensor([[[0.0, 1e4, -1e4], [1e4, 1e4, 1e4], [-1e4, -1e4, 0.0]]])
    scores.requires_grad_()
    glimpse = SoftSelect()(scores, torch.eye(3).unsqueeze(0))
    assert glimpse.map[0].tolist() == [[0, 1, 0], [pytest.approx(1 / 3)] * 3, [0, 0, 1]]
    assert glimpse.entropy[0].tolist() == pytest.approx([0, math.log(3), 0], abs=1e-6)
    (glimpse.context.sum() + glimpse.entropy.sum()).backward()
    assert torch.isfinite(scores.grad).all()


def test_the_map_is_float32_and_sums_to_one_under_bfloat16_autocast() -> None:
    attention, grid = random_attention()
    attention.float()
    grid = Grid(grid.features.float(), ROWS, COLUMNS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        glimpse = attention(random_query().float(), attention.prepare(grid))
    assert glimpse.map.dtype == glimpse.entropy.dtype == torch.float32
    assert torch.allclose(glimpse.map.sum(-1), torch.ones(B, K), atol=1e-6)


class FavourLaterCells(nn.Module):
    """A window that adds a tenth of its number to each cell's score."""

    def forward(self, query: Tensor, grid: Grid) -> Tensor:
        return 0.1 * torch.arange(L, dtype=query.dtype).expand(*query.shape[:2], L)


def test_a_window_is_added_to_the_scores() -> None:
    attention, grid = random_attention(window=FavourLaterCells())
    query = random_query()
    glimpse = attention(query, attention.prepare(grid))
    free = attention.score(query, attention.score.keys(grid.features))
    for b in range(B):
        for k in range(K):
            expected = plain_softmax([free[b, k, i].item() + 0.1 * i for i in range(L)])
            assert glimpse.map[b, k].tolist() == pytest.approx(expected, rel=1e-12)


class OnlyTheFirstCells(nn.Module):
    """A window over the first `count` cells, in log space as windows are."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, query: Tensor, grid: Grid) -> Tensor:
        bias = query.new_full((*query.shape[:2], grid.features.shape[1]), -torch.inf)
        bias[..., : self.count] = 0.0
        return bias


def test_a_window_keeps_attention_to_its_cells_and_the_entropy_is_theirs() -> None:
    attention, grid = random_attention(window=OnlyTheFirstCells(2))
    query = random_query().requires_grad_()
    glimpse = attention(query, attention.prepare(grid))
    free = attention.score(query, attention.score.keys(grid.features))
    for b in range(B):
        for k in range(K):
            expected = plain_softmax(free[b, k, :2].tolist())
            assert glimpse.map[b, k].tolist() == pytest.approx([*expected, 0, 0, 0, 0], rel=1e-12)
            entropy = -sum(share * math.log(share) for share in expected)
            assert glimpse.entropy[b, k].item() == pytest.approx(entropy, rel=1e-12)
    glimpse.entropy.sum().backward()
    assert torch.isfinite(query.grad).all()


def test_the_global_window_excludes_nothing() -> None:
    _, grid = random_attention()
    assert GlobalWindow()(random_query(), grid) is None


def test_hypotheses_of_a_photo_see_the_same_as_each_would_alone() -> None:
    attention, grid = random_attention()
    query = random_query(beams=4)
    together = attention(query, attention.prepare(grid))
    for k in range(4):
        alone = attention(query[:, k : k + 1], attention.prepare(grid))
        for name in ("context", "map", "entropy"):
            torch.testing.assert_close(
                getattr(together, name)[:, k : k + 1], getattr(alone, name), rtol=1e-12, atol=1e-13
            )


def test_another_query_or_another_photo_gives_another_map() -> None:
    attention, grid = random_attention()
    glimpse = attention(random_query(), attention.prepare(grid))
    maps = glimpse.map.reshape(B * K, L)
    assert all((maps[i] - maps[j]).abs().max() > 1e-3 for i in range(B * K) for j in range(i))


@pytest.mark.parametrize("index", [torch.tensor([2, 0, 0, 1]), slice(2)], ids=["index", "slice"])
def test_selected_photos_keep_features_keys_and_shape(index: Tensor | slice) -> None:
    attention, grid = random_attention()
    memory = attention.prepare(grid)
    chosen = memory.select(index)
    assert isinstance(chosen, Memory)
    assert (chosen.grid.height, chosen.grid.width) == (ROWS, COLUMNS)
    positions = index.tolist() if isinstance(index, Tensor) else [0, 1]
    for row, position in enumerate(positions):
        assert torch.equal(chosen.keys[row], memory.keys[position])
        assert torch.equal(chosen.grid.features[row], grid.features[position])
    assert len(chosen.keys) == len(positions)


def test_keys_do_not_depend_on_the_query_and_are_computed_in_prepare_only() -> None:
    attention, grid = random_attention()
    calls: list[int] = []
    attention.score.key.register_forward_hook(lambda *_: calls.append(1))
    memory = attention.prepare(grid)
    for _ in range(3):
        attention(random_query(), memory)
    assert calls == [1]
