"""Score, window and select together: equations 5, 6 and 13, heads, and what beams share."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import plain
import pytest
import torch
from torch import Tensor, nn

from captioner.config import AttentionConfig
from captioner.models.attention.attention import Attention, SoftSelect
from captioner.runtime.draws import child_seeds
from captioner.types import Grid

B, K, ROWS, COLUMNS, D, H, A = 3, 2, 2, 3, 5, 4, 6
L = ROWS * COLUMNS
HD = 6  # as D, divisible by the heads


def random_attention() -> tuple[Attention, Grid]:
    torch.manual_seed(0)
    attention = Attention(AttentionConfig(dim=A), query_dim=H, feature_dim=D).double()
    for parameter in attention.parameters():
        nn.init.normal_(parameter)
    return attention, Grid(torch.randn(B, L, D, dtype=torch.double), ROWS, COLUMNS)


def random_query(beams: int = K) -> Tensor:
    return torch.randn(B, beams, H, dtype=torch.double)


def test_scores_of_any_size_give_a_map_that_sums_to_one_and_a_finite_entropy_and_gradient() -> None:
    scores = torch.tensor([[[0.0, 1e4, -1e4], [1e4, 1e4, 1e4], [-1e4, -1e4, 0.0]]])
    scores.requires_grad_()
    attended = SoftSelect(AttentionConfig())(scores, torch.eye(3).unsqueeze(0))
    assert attended.weights[0].tolist() == [[0, 1, 0], [pytest.approx(1 / 3)] * 3, [0, 0, 1]]
    assert attended.entropy[0].tolist() == pytest.approx([0, math.log(3), 0], abs=1e-6)
    (attended.context.sum() + attended.entropy.sum()).backward()
    assert torch.isfinite(scores.grad).all()


def test_the_map_is_float32_and_sums_to_one_under_bfloat16_autocast() -> None:
    attention, grid = random_attention()
    attention.float()
    grid = Grid(grid.features.float(), ROWS, COLUMNS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        attended = attention(random_query().float(), attention.prepare(grid), 0)
    assert attended.weights.dtype == attended.entropy.dtype == torch.float32
    assert torch.allclose(attended.weights.sum(-1), torch.ones(B, K), atol=1e-6)


def multi_head(heads: int, **settings: Any) -> Attention:
    torch.manual_seed(0)
    config = AttentionConfig("scaled_dot", dim=A, heads=heads, **settings)
    attention = Attention(config, query_dim=H, feature_dim=HD, context_dim=7)
    for parameter in attention.parameters():
        nn.init.normal_(parameter)
    return attention.double()


def wide_grid() -> Grid:
    return plain.grid(B, ROWS, COLUMNS, HD, seed=3)


@pytest.mark.parametrize("heads", [1, 3])
def test_every_head_of_hard_attention_samples_a_cell_of_its_own(heads: int) -> None:
    attention = multi_head(heads, select="hard", semi_sampling=0.0).train()
    values = attention.values
    grid, query = wide_grid(), random_query()
    attended = attention(query, attention.prepare(grid), 0)
    maps = torch.softmax(attention.score(query, attention.score.keys(grid.features)), -1)
    assert attended.cells.shape == ((B, K) if heads == 1 else (B, K, heads))
    cells = attended.cells.reshape(B, K, heads)
    for b, k in product(range(B), range(K)):
        log_prob, contexts = 0.0, []
        for head in range(heads):
            cell = int(cells[b, k, head])
            log_prob += math.log(maps[b, head, k, cell].item())
            projected = plain.linear(values.value, grid.features[b, cell].tolist())
            contexts += plain.part(projected, head, heads)
        assert attended.log_prob[b, k].item() == pytest.approx(log_prob, rel=1e-10)
        expected = plain.linear(values.output, contexts)
        assert attended.context[b, k].tolist() == pytest.approx(expected, abs=1e-10)
    if heads > 1:
        assert (cells[..., 0] != cells[..., 1]).any()


def test_cells_drawn_by_seed_are_independent_among_heads_and_words() -> None:
    """One image 5,000 times: all pairs of cells come equally often where all scores are zero."""
    count, heads = 5000, 2
    attention = multi_head(heads, select="hard", semi_sampling=0.0).train()
    grid, query = wide_grid().select(slice(1)), random_query(beams=1)[:1]
    seeds = child_seeds(torch.tensor(0), torch.arange(count))
    memory = attention.prepare(replace(grid, at_random=True))
    memory = memory.select(torch.zeros(count, dtype=torch.long), seeds)
    words = [attention(query.expand(count, -1, -1), memory, position) for position in range(2)]
    cells = torch.cat([word.cells[:, 0] for word in words if word.cells is not None], dim=1)
    expected = 1 / L**2
    error = math.sqrt(expected * (1 - expected) / count)
    for one, other in combinations(range(2 * heads), 2):
        pairs = torch.bincount(cells[:, one] * L + cells[:, other], minlength=L * L)
        assert (pairs / count - expected).abs().max() < 5 * error, (one, other)


@pytest.mark.parametrize("heads", [1, 2])
def test_a_photo_of_the_expectation_is_one_for_all_its_words_and_heads(heads: int) -> None:
    attention, soft = multi_head(heads, select="hard", semi_sampling=0.5), multi_head(heads)
    grid, query = replace(wide_grid(), seeds=2 * torch.arange(B)), random_query()
    memory = attention.train().prepare(grid)
    assert 0 < memory.use_expectation.sum() < B, "both kinds of photo are needed here"
    again = memory.select(torch.tensor([2, 2, 0, 1]))
    assert again.use_expectation.tolist() == memory.use_expectation[[2, 2, 0, 1]].tolist()
    attended = attention(query, memory, 0)
    expected = soft(query, soft.prepare(grid), 0)
    for b in range(B):
        same = torch.isclose(attended.context[b], expected.context[b]).all(-1)
        assert same.tolist() == [bool(memory.use_expectation[b])] * K
        assert (attended.log_prob[b] == 0).tolist() == [bool(memory.use_expectation[b])] * K
    assert attention.eval().prepare(grid).use_expectation is None
