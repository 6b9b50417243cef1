"""Hard attention against its definition, and where it must be what soft attention is."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from typing import Any

import plain
import pytest
import torch
from torch import Tensor

from captioner.config import AttentionConfig
from captioner.models.attention.attention import Attention, SoftSelect
from captioner.models.attention.hard import HardSelect
from captioner.types import Grid, hard_attention_mode

B, K, L, D = 3, 2, 5, 4


def random_scores(scale: float = 2.0) -> tuple[Tensor, Tensor]:
    """Scores [B, K, L] and values [B, L, D]."""
    generator = torch.Generator().manual_seed(0)
    scores = scale * torch.randn(B, K, L, dtype=torch.double, generator=generator)
    return scores, torch.randn(B, L, D, dtype=torch.double, generator=generator)


def test_the_expectation_at_test_is_soft_attention() -> None:
    scores, values = random_scores()
    found = HardSelect(AttentionConfig(at_test="expectation")).eval()(scores, values)
    expected = SoftSelect(AttentionConfig())(scores, values)
    for name in ("context", "weights", "entropy", "log_prob"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert found.cells is None


@pytest.mark.parametrize("training", [True, False])
def test_samples_come_as_often_as_the_map_says(training: bool) -> None:
    """Each share of 20 000 samples within 4 of its own standard errors: 30 shares are compared."""
    count = 20_000
    scores, values = random_scores()
    select = HardSelect(AttentionConfig(semi_sampling=0.0, at_test="sample")).train(training)
    torch.manual_seed(0)
    many = scores.repeat_interleave(count, dim=1)  # as hypotheses of the same photo
    attended = select(many, values)
    for b, k in product(range(B), range(K)):
        shares = plain.softmax(scores[b, k].tolist())
        cells = attended.cells[b, k * count : (k + 1) * count]
        for cell, share in enumerate(shares):
            found = (cells == cell).double().mean().item()
            assert abs(found - share) < 4 * math.sqrt(share * (1 - share) / count), (b, k, cell)


def test_no_cell_outside_of_a_window_is_ever_sampled() -> None:
    scores = torch.full((1, 5000, 4), -torch.inf)
    scores[..., 1], scores[..., 3] = 0.0, -6.0
    attended = HardSelect(AttentionConfig(semi_sampling=0.0)).train()(scores, torch.zeros(1, 4, 2))
    assert set(attended.cells.unique().tolist()) == {1, 3}
    assert torch.isfinite(attended.log_prob).all()


def test_photos_take_the_expectation_as_often_as_semi_sampling_says() -> None:
    grid = Grid(torch.zeros(10_000, 1, D), 1, 1, seeds=torch.arange(10_000))
    for share in (0.5, 0.2, 1.0):
        config = AttentionConfig(select="hard", dim=4, semi_sampling=share)
        attention = Attention(config, query_dim=3, feature_dim=D).train()
        drawn = attention.prepare(grid).use_expectation
        error = math.sqrt(share * (1 - share) / 10_000)
        assert abs(drawn.double().mean().item() - share) <= 4 * error
        assert attention.eval().prepare(grid).use_expectation is None
    for other in (replace(config, semi_sampling=0.0), replace(config, select="soft")):
        attention = Attention(other, query_dim=3, feature_dim=D).train()
        assert attention.prepare(grid).use_expectation is None


def test_no_gradient_passes_through_the_sample() -> None:
    scores, values = random_scores()
    scores.requires_grad_()
    values.requires_grad_()
    attended = HardSelect(AttentionConfig(semi_sampling=0.0)).train()(scores, values)
    (attended.context**2).sum().backward(retain_graph=True)
    assert scores.grad is None or not scores.grad.any()
    assert values.grad.any(), "attended cells learn all the same"
    attended.log_prob.sum().backward()
    one_hot = torch.nn.functional.one_hot(attended.cells, L)
    torch.testing.assert_close(scores.grad, one_hot - attended.weights.detach())


def test_a_photo_of_the_expectation_gives_the_scores_soft_attentions_gradient() -> None:
    scores, values = random_scores()
    gradients = []
    for select in (SoftSelect(AttentionConfig()), HardSelect(AttentionConfig()).train()):
        given = scores.clone().requires_grad_()
        (select(given, values, torch.tensor([True, False, True])).context ** 2).sum().backward()
        gradients.append(given.grad)
    soft, hard = gradients
    torch.testing.assert_close(hard[[0, 2]], soft[[0, 2]])
    assert not hard[1].any()
    assert soft[1].any()


@pytest.mark.parametrize("build", [SoftSelect, HardSelect])
@pytest.mark.parametrize("temperature", [0.25, 1.0, 4.0])
def test_map_entropy_and_context_are_a_plain_loop(build: Any, temperature: float) -> None:
    """Equations 5, 6 and 13, after a division by the temperature."""
    scores, values = random_scores()
    attended = build(AttentionConfig(temperature=temperature)).eval()(scores, values)
    for b, k in product(range(B), range(K)):
        shares = plain.softmax([score / temperature for score in scores[b, k].tolist()])
        assert attended.weights[b, k].tolist() == pytest.approx(shares, rel=1e-12)
        entropy = -sum(share * math.log(share) for share in shares)
        assert attended.entropy[b, k].item() == pytest.approx(entropy, rel=1e-12)
        context, log_prob = plain.expectation(shares, values[b].tolist()), 0.0
        if attended.cells is not None:
            context = values[b, attended.cells[b, k]].tolist()
            log_prob = math.log(max(shares))
        assert attended.context[b, k].tolist() == pytest.approx(context, abs=1e-12)
        assert attended.log_prob[b, k].item() == pytest.approx(log_prob, rel=1e-12)
    assert (attended.cells is None) == (build is SoftSelect)


def test_the_mode_of_hard_attention_belongs_to_its_thread_and_is_undone() -> None:
    select = HardSelect(AttentionConfig()).eval()
    scores, values = torch.randn(1, 2, 6), torch.randn(1, 6, 3)
    with pytest.raises(RuntimeError, match="on the way"), hard_attention_mode("expectation"):
        raise RuntimeError("on the way")
    assert select(scores, values).cells is not None
    with hard_attention_mode("expectation"):
        here = select(scores, values)
        with ThreadPoolExecutor(1) as thread:
            there = thread.submit(select, scores, values).result()
    assert here.cells is None
    assert there.cells is not None
    assert select(scores, values).cells is not None
