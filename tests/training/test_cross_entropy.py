"""Equation 14 and its parts against plain loops and torch's own cross-entropy."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import plain
import pytest
import tiny
import torch
from torch import Tensor
from torch.nn import functional

from captioner.config.settings import LossConfig
from captioner.data.batch import Batch, pack_by_step
from captioner.errors import ConfigError
from captioner.models.decoders.base import TeacherForcingOutput
from captioner.training.cross_entropy import attention_effect_loss, caption_losses
from captioner.training.distillation import TeacherTargets

V, L = 7, 5
LENGTHS = [[4, 4, 2, 1], [1], [6, 1, 1]]
CLOSE = 1e-6  # the loss is float32 whatever the logits are


def random_batch(lengths: list[int], seed: int = 0) -> tuple[TeacherForcingOutput, Batch]:
    """What a decoder returns for captions of these lengths, and the captions."""
    generator = torch.Generator().manual_seed(seed)
    captions, words = len(lengths), max(lengths)
    running = torch.tensor(lengths).unsqueeze(1) > torch.arange(words)
    maps = torch.rand(captions, words, L, dtype=torch.double, generator=generator)
    maps = maps / maps.sum(-1, keepdim=True) * running.unsqueeze(-1)
    logits = 2 * torch.randn(sum(lengths), V, dtype=torch.double, generator=generator)
    targets = torch.randint(2, V, (captions, words), generator=generator) * running
    zeros = torch.zeros(captions, words)
    forced = TeacherForcingOutput(
        logits.requires_grad_(), maps.requires_grad_(), zeros, zeros, None
    )
    return forced, tiny.captions(targets, torch.tensor(lengths))


def places(lengths: list[int]) -> list[tuple[int, int]]:
    """Caption and step of each packed word."""
    return [(n, t) for t in range(max(lengths)) for n in range(len(lengths)) if t < lengths[n]]


def plain_penalties(maps: list[list[list[float]]]) -> list[float]:
    """For each caption, sum over cells of (1 - sum over words)^2."""
    return [
        sum((1 - sum(step[cell] for step in caption)) ** 2 for cell in range(L)) for caption in maps
    ]


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_the_parts_are_plain_loops(lengths: list[int], label_smoothing: float) -> None:
    forced, batch = random_batch(lengths)
    losses = caption_losses(
        forced, batch, LossConfig(doubly_stochastic=0.7, label_smoothing=label_smoothing)
    )
    own, smoothed = [], []
    for row, (n, t) in enumerate(places(lengths)):
        log_probs = plain.log_softmax(forced.logits[row].tolist())
        share = label_smoothing / V
        target = int(batch.targets[n, t])
        wanted = [share + (1 - label_smoothing) * (v == target) for v in range(V)]
        own.append(-log_probs[target])
        smoothed.append(-sum(w * p for w, p in zip(wanted, log_probs, strict=True)))
    penalties = plain_penalties(forced.maps.tolist())
    words, captions = len(own), len(lengths)
    expected = {
        "cross_entropy": sum(own) / words,
        "smoothed": sum(smoothed) / words,
        "doubly_stochastic": sum(penalties) / captions,
        "total": (sum(smoothed) + 0.7 * sum(penalties)) / words,
    }
    assert {name: loss.item() for name, loss in losses.items()} == pytest.approx(
        expected, rel=CLOSE
    )


def test_bfloat16_logits_are_summed_in_float32() -> None:
    forced, batch = random_batch([6, 5, 4])
    half = replace(forced, logits=forced.logits.detach().bfloat16())
    losses = caption_losses(half, batch, LossConfig(doubly_stochastic=0.0))
    words = pack_by_step(batch.targets, batch.lengths)
    expected = functional.cross_entropy(half.logits.double(), words)
    assert losses["total"].dtype != torch.bfloat16
    assert losses["total"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_attention_is_drawn_to_that_of_teachers_by_their_divergence() -> None:
    lengths = [4, 3, 1]
    forced, batch = random_batch(lengths)
    wanted = random_batch(lengths, seed=5)[0].maps.detach()
    probs = torch.full((sum(lengths), V), 1 / V, dtype=torch.float64)

    def losses(**settings: Any) -> dict[str, Tensor]:
        taught = TeacherTargets(probs, wanted)
        loss = LossConfig(doubly_stochastic=0.0, **settings)
        return caption_losses(forced, batch, loss, teacher_targets=taught)

    divergence = 0.0
    for caption, step in places(lengths):
        pairs = zip(
            wanted[caption, step].tolist(), forced.maps[caption, step].tolist(), strict=True
        )
        divergence += sum(p * math.log(p / q) for p, q in pairs) / sum(lengths)
    without, with_weight = losses(), losses(attention_distillation=0.7)
    assert with_weight["attention_divergence"].item() == pytest.approx(divergence, rel=CLOSE)
    added = with_weight["total"].item() - without["total"].item()
    assert added == pytest.approx(0.7 * divergence, rel=1e-5)
    (gradient,) = torch.autograd.grad(with_weight["total"], forced.maps)
    expected = -0.7 * wanted / forced.maps.detach().clamp_min(1e-300) / sum(lengths)
    torch.testing.assert_close(gradient, expected.nan_to_num(), rtol=1e-6, atol=1e-9)
    wider = TeacherTargets(probs, torch.zeros(3, 4, L + 1))
    with pytest.raises(ConfigError, match=r"attention_distillation: a teacher attends to 6 cells"):
        caption_losses(forced, batch, LossConfig(), teacher_targets=wider)


@pytest.mark.parametrize(("label_smoothing", "distillation"), [(0.0, 0.0), (0.2, 0.0), (0.2, 0.3)])
def test_captions_have_weights_and_teachers_a_share_of_the_target(
    label_smoothing: float, distillation: float
) -> None:
    lengths = [4, 3, 1]
    forced, batch = random_batch(lengths)
    soft_targets = torch.softmax(torch.randn(sum(lengths), V, dtype=torch.float64), -1)
    weights = [0.5, 2.0, 0.0]
    settings = {"label_smoothing": label_smoothing, "distillation": distillation}
    parts = caption_losses(
        forced,
        replace(batch, weights=torch.tensor(weights)),
        LossConfig(doubly_stochastic=0.3, **settings),
        teacher_targets=TeacherTargets(soft_targets) if distillation else None,
    )
    total = plainly = 0.0
    rows = zip(forced.logits.tolist(), soft_targets.tolist(), places(lengths), strict=True)
    for row, teacher, (caption, step) in rows:
        for word, log_prob in enumerate(plain.log_softmax(row)):
            is_target = word == int(batch.targets[caption, step])
            plainly -= is_target * log_prob
            wanted = label_smoothing / V + (1 - label_smoothing) * is_target
            wanted = (1 - distillation) * wanted + distillation * teacher[word]
            total -= weights[caption] * wanted * log_prob
    total += 0.3 * sum(plain_penalties(forced.maps.tolist()))
    assert parts["total"].item() == pytest.approx(total / sum(lengths), rel=CLOSE)
    assert parts["cross_entropy"].item() == pytest.approx(plainly / sum(lengths), rel=CLOSE)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_the_effect_of_attention_is_a_plain_loop_with_a_gradient_for_random_cells_alone(
    lengths: list[int],
) -> None:
    own, batch = random_batch(lengths)
    other = random_batch(lengths, seed=1)[0]
    loss, metric = attention_effect_loss(own, other, replace(batch, words=10.0), effect=0.8)
    lost = [0.0] * len(lengths)
    rows = zip(places(lengths), own.logits.tolist(), other.logits.tolist(), strict=True)
    for (n, t), with_own, with_other in rows:
        word = int(batch.targets[n, t])
        lost[n] += plain.log_softmax(with_own)[word] - plain.log_softmax(with_other)[word]
    expected = sum(abs(0.8 * length - each) for length, each in zip(lengths, lost, strict=True))
    assert float(loss.detach()) == pytest.approx(expected / 10, rel=1e-12)
    assert float(metric) == pytest.approx(sum(lost) / 10, rel=1e-12)
    loss.backward()
    assert own.logits.grad is None
    assert other.logits.grad.abs().sum() > 0
