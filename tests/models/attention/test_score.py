"""Each score against a plain loop over cells, with one head and with several."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import plain
import pytest
import torch
from plain import Vector
from torch import Tensor, nn

from captioner.config import AttentionConfig
from captioner.models.attention.attention import AdditiveScore, Score, additive_scores
from captioner.models.attention.scores import CosineScore
from captioner.registry import SCORES

B, K, L, D, H, A = 2, 3, 6, 5, 8, 4


def build(name: str, heads: int = 1) -> Score:
    config = AttentionConfig(score=name, dim=A, heads=heads)
    more = {"cells": L} if name == "location" else {}
    return SCORES[name](config, query_dim=H, feature_dim=D, **more)


def plain_additive(score: Score, query: Vector, cell: Vector, head: int, number: int) -> float:
    """w . tanh(W_a a + b + W_h h), of the head's own rows."""
    assert isinstance(score, AdditiveScore)
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
    rows = score.key.weight.tolist()
    mapped = [plain.dot(row, cell) for row in rows]
    return plain.dot(plain.part(query, head, score.heads), plain.part(mapped, head, score.heads))


def plain_cosine(score: Score, query: Vector, cell: Vector, head: int, number: int) -> float:
    assert isinstance(score, CosineScore)
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
    assert isinstance(score, AdditiveScore)
    queries = torch.randn(B, heads, K, A // heads, dtype=torch.float64)
    keys = torch.randn(B, heads, L, A // heads, dtype=torch.float64)
    weight = score.energy.weight.view(heads, 1, 1, -1)
    found = additive_scores(queries, keys, weight)
    torch.testing.assert_close(found, score.compare(queries, keys), rtol=1e-12, atol=1e-12)
