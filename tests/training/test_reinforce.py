"""Equation 12: the estimator against the exact gradient, and its baselines against plain loops."""

from __future__ import annotations

import copy
import functools
import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn
from torch.nn import functional

from captioner.config import AttentionConfig, DecoderConfig
from captioner.config.settings import HardConfig, LossConfig
from captioner.data.batch import Batch, unpack_by_step
from captioner.models.attention import hard
from captioner.models.build import build_decoder
from captioner.models.decoders.base import Decoder, TeacherForcingOutput
from captioner.runtime.draws import child_seeds
from captioner.training.cross_entropy import caption_losses
from captioner.training.distillation import TeacherTargets
from captioner.training.reinforce import Reinforce
from captioner.types import Grid

L, T, D, H, V = 3, 2, 3, 5, 7
KINDS = ["none", "moving_average", "leave_one_out"]
CREDITS = ["caption", "future"]
CHUNKS, CHUNK = 32, 250  # 8000 samples of one caption, whose gradients are taken 250 at a time
# Of Student's t with 31 degrees of freedom: 1000 parameters of a right estimator all stay within it,
# but for one run in a thousand.
BOUND = 6.0


def tiny_decoder(kind: Any = "lstm", layers: int = 1) -> Decoder:
    """Return a decoder in training mode without dropout: only the attention is sampled."""
    torch.manual_seed(0)
    decoder = build_decoder(
        DecoderConfig(
            kind=kind,
            hidden_dim=H if kind != "transformer" else 6,
            embed_dim=4,
            dropout=0.0,
            heads=1,
            layers=layers,
            feedforward_dim=4,
        ),
        AttentionConfig(select="hard", dim=4, semi_sampling=0.0),
        feature_dim=D,
        vocabulary_size=V,
    )
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(2.5 if kind != "transformer" else 1.5)
    return decoder.double().train()


FEATURES = 2 * torch.randn(1, L, D, dtype=torch.double, generator=torch.Generator().manual_seed(1))
READ, TARGETS, LENGTHS = torch.tensor([[1, 4]]), torch.tensor([[4, 2]]), torch.tensor([T])


def read(decoder: Decoder, times: int, seeds: Tensor | None = None) -> TeacherForcingOutput:
    """The same caption of the same photo so many times."""
    memory = decoder.prepare(Grid(FEATURES, 1, L)).select(torch.zeros(times).long(), seeds)
    return decoder(memory, READ.expand(times, -1), LENGTHS.expand(times))


def repeated(seed: int, captions: int, samples: int) -> Batch:
    """The same caption so many times, with seeds as in training, sampled `samples` times each."""
    batch = Batch(
        inputs=FEATURES,
        image_numbers=torch.zeros(1).long(),
        image_index=torch.zeros(captions).long(),
        targets=TARGETS.expand(captions, -1),
        lengths=LENGTHS.expand(captions),
        words=T * captions,
        captions=captions,
        seeds=child_seeds(torch.tensor(seed), torch.arange(captions)),
    )
    return batch.repeated(samples)


def flat_gradient(loss: Tensor, model: nn.Module) -> Tensor:
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat(
        [
            (torch.zeros_like(parameter) if gradient is None else gradient).flatten()
            for parameter, gradient in zip(parameters, gradients, strict=True)
        ]
    )


def along_every_path(decoder: Decoder, steps: int = T) -> TeacherForcingOutput:
    """The caption once for each sequence of attended cells [L ** steps]."""
    paths = torch.tensor(list(product(range(L), repeat=steps)))  # [L ** steps, steps]
    count = len(paths)
    calls = iter(range(steps))

    def given(log_map: Tensor, seeds: Tensor | None) -> Tensor:
        """[count, K]: K is 1 in an LSTM's steps, T in a Transformer, whose layers are calls."""
        words = log_map.shape[-2]
        first = next(calls) * words
        return paths[:, first : first + words].view(log_map.shape[:-1])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hard, "_sample", given)
        forced = read(decoder, count)
    assert forced.log_prob.sum(1).exp().sum().item() == pytest.approx(1)
    return forced


def exact_gradient(
    decoder: Decoder, steps: int = T, wanted: Tensor | None = None, weight: float = 1.0
) -> Tensor:
    """Of the sum over all paths of p(s) times the cross-entropy a word, of targets [T, V]."""
    forced = along_every_path(decoder, steps)
    log_probs = torch.log_softmax(forced.logits, -1).view(T, -1, V)
    wanted = functional.one_hot(TARGETS[0], V) if wanted is None else wanted
    losses = -weight * (wanted.unsqueeze(1) * log_probs).sum((0, 2)) / T
    return flat_gradient((forced.log_prob.sum(1).exp() * losses).sum(), decoder)


def estimates(decoder: Decoder, hard: Reinforce) -> Tensor:
    """Return gradients [CHUNKS, parameters] of the loss that training uses, of CHUNK samples each."""
    torch.manual_seed(1)
    gradients = []
    samples = hard.hard.samples
    for chunk in range(CHUNKS):
        batch = repeated(chunk, CHUNK // samples, samples)
        losses = caption_losses(
            read(decoder, CHUNK, batch.seeds), batch, LossConfig(doubly_stochastic=0.0), hard
        )
        gradients.append(flat_gradient(losses["total"], decoder))
    return torch.stack(gradients)


def largest_z(gradients: Tensor, exact: Tensor) -> float:
    """How many of its own standard errors the mean is away, for the worst parameter.

    Where it never changes, as on words that are not read, it must be exact, or is infinitely away.
    """
    assert gradients.shape[1] <= 1000
    error = gradients.std(0) / math.sqrt(CHUNKS)
    off = (gradients.mean(0) - exact).abs()
    off = torch.where(off < 1e-9, 0.0, off)
    return torch.where(off == 0, 0.0, off / error.where(error > 1e-12, 0.0)).max().item()


def hard_loss(kind: Any, credit: Any) -> Reinforce:
    hard = HardConfig(baseline=kind, samples=2, credit=credit, reward_scale=1.0, entropy=0.0)
    return Reinforce(hard).double()


@functools.cache
def case() -> tuple[Decoder, Tensor]:
    """The decoder, and the exact gradient of its loss."""
    decoder = tiny_decoder()
    return decoder, exact_gradient(decoder)


@functools.cache
def estimated(kind: str, credit: str) -> Tensor:
    return estimates(case()[0], hard_loss(kind, credit))


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_estimate_is_the_exact_gradient_within_six_standard_errors(
    kind: str, credit: str
) -> None:
    _, exact = case()
    gradients = estimated(kind, credit)
    assert largest_z(gradients, exact) < BOUND
    error = gradients.std(0).norm() / math.sqrt(CHUNKS)
    assert error < 0.2 * exact.norm(), "too noisy to say anything"


def expected_estimate(
    decoder: Decoder, hard: Reinforce, loss: LossConfig, teacher: Tensor, weight: float
) -> Tensor:
    """Mean over all pairs of paths of the gradient that training takes from the pair."""
    every = along_every_path(decoder)
    probability = every.log_prob.detach().sum(1).exp()
    total = torch.zeros((), dtype=torch.double)
    weights = torch.full((2,), weight, dtype=torch.double)
    batch = tiny.captions(TARGETS.expand(2, -1), LENGTHS.expand(2), weights=weights)
    taught = TeacherTargets(teacher.repeat_interleave(2, 0))
    for pair in product(range(len(probability)), repeat=2):
        rows = list(pair)
        forced = replace(
            every,
            logits=every.logits.view(T, -1, V)[:, rows].flatten(0, 1),
            maps=every.maps[rows],
            entropy=every.entropy[rows],
            log_prob=every.log_prob[rows],
        )
        losses = caption_losses(forced, batch, loss, hard, taught)
        total = total + probability[rows].prod() * losses["total"]
    return flat_gradient(total, decoder)


# Weight of the caption, label smoothing, share of the teachers.
MINIMISED = [(1.0, 0.0, 0.0), (0.2, 0.0, 0.0), (2.0, 0.1, 0.5)]


@pytest.mark.parametrize("kind", ["none", "leave_one_out"])
@pytest.mark.parametrize(("weight", "smoothing", "distillation"), MINIMISED)
def test_cells_are_rewarded_for_the_loss_of_the_words_as_it_is_minimised(
    weight: float, smoothing: float, distillation: float, kind: str
) -> None:
    """Only then is the expected gradient exact; the paper's reward has that of cross-entropy."""
    decoder, _ = case()
    teacher = torch.softmax(2 * FEATURES[0, :T].tile(3)[:, :V], -1)
    loss = LossConfig(doubly_stochastic=0.0, label_smoothing=smoothing, distillation=distillation)
    words = (1 - smoothing) * functional.one_hot(TARGETS[0], V).double() + smoothing / V
    wanted = (1 - distillation) * words + distillation * teacher
    exact = exact_gradient(decoder, wanted=wanted, weight=weight)
    given = (loss, teacher, weight)
    hard = hard_loss(kind, "future")
    torch.testing.assert_close(expected_estimate(decoder, hard, *given), exact)
    hard.hard = replace(hard.hard, reward="log_prob")
    error = (expected_estimate(decoder, hard, *given) - exact).norm() / exact.norm()
    is_plain = (weight, smoothing, distillation) == MINIMISED[0]
    assert error < 1e-9 if is_plain else error > 1e-3


NONE = HardConfig(baseline="none", samples=1, entropy=0.0)


@pytest.mark.parametrize("wrong", [{"reward_scale": 0.0}, {"reward_scale": 0.1}, {"entropy": 0.5}])
def test_a_wrong_estimator_is_found_out_by_the_same_check(wrong: dict[str, Any]) -> None:
    decoder, exact = case()
    assert largest_z(estimates(decoder, Reinforce(replace(NONE, **wrong))), exact) > 1.5 * BOUND


def test_a_transformer_that_samples_in_every_layer_has_the_exact_gradient_too() -> None:
    decoder = tiny_decoder("transformer", layers=2)
    exact = exact_gradient(decoder, steps=2 * T)
    assert largest_z(estimates(decoder, hard_loss("leave_one_out", "future")), exact) < BOUND


def test_baselines_and_credit_take_noise_away() -> None:
    """Variance of the gradient once averages are settled, as a share of that without a baseline."""
    noise = {
        (kind, credit): estimated(kind, credit)[8:].var(0).sum().item()
        for kind, credit in product(KINDS, CREDITS)
    }
    assert noise["none", "future"] < 0.9 * noise["none", "caption"]
    for kind, credit in product(("moving_average", "leave_one_out"), CREDITS):
        assert noise[kind, credit] < 0.6 * noise["none", credit], (kind, credit, noise)


ROWS = [4, 3, 3, 1]


def random_forced(seed: int = 0) -> tuple[TeacherForcingOutput, Tensor, Batch]:
    """What a decoder and its words gave for four captions, and the captions."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor(ROWS)
    words = int(lengths.sum())

    def positive(*shape: int) -> Tensor:
        return torch.rand(*shape, dtype=torch.double, generator=generator) + 0.1

    running = torch.arange(4) < lengths.unsqueeze(1)
    forced = TeacherForcingOutput(
        logits=torch.zeros(words, V),
        maps=torch.zeros(4, 4, L),
        entropy=(positive(4, 4) * running).requires_grad_(),
        log_prob=(-positive(4, 4) * running).requires_grad_(),
        beta=None,
    )
    return forced, -3 * positive(words), tiny.captions(torch.zeros(4, 4).long(), lengths)


def plain_rewards(log_probs: Tensor, credit: str) -> tuple[list[list[float]], list[list[int]]]:
    """R and the number of words that it sums, for each caption and word."""
    by_word = unpack_by_step(log_probs, torch.tensor(ROWS)).tolist()
    rewards, counts = [], []
    for row, length in enumerate(ROWS):
        own = by_word[row][:length]
        parts = [own if credit == "caption" else own[t:] for t in range(length)]
        rewards.append([sum(part) for part in parts] + [0.0] * (4 - length))
        counts.append([len(part) for part in parts] + [0] * (4 - length))
    return rewards, counts


@pytest.mark.parametrize("credit", CREDITS)
def test_rewards_and_the_loss_are_plain_loops(credit: Any) -> None:
    forced, log_probs, captions = random_forced()
    hard = Reinforce(replace(NONE, credit=credit, reward_scale=0.7, entropy=0.3))
    loss, parts = hard(forced, log_probs, captions)
    rewards, counts = plain_rewards(log_probs, credit)
    found, found_counts = hard._rewards(log_probs, captions.lengths)
    assert found.tolist() == [pytest.approx(row, rel=1e-12, abs=1e-12) for row in rewards]
    assert found_counts.tolist() == counts
    reinforce = entropy = squares = 0.0
    for row, length in enumerate(ROWS):
        for t in range(length):
            reinforce -= rewards[row][t] * forced.log_prob[row, t].item() / sum(ROWS)
            entropy += forced.entropy[row, t].item() / sum(ROWS)
            squares += rewards[row][t] ** 2 / sum(ROWS)
    assert loss.item() == pytest.approx(0.7 * reinforce - 0.3 * entropy, rel=1e-12)
    assert parts["reinforce"].item() == pytest.approx(reinforce, rel=1e-12)
    assert parts["advantage"].item() == pytest.approx(squares, rel=1e-12)
    assert not any(part.requires_grad for part in parts.values())
    loss.backward()
    running = unpack_by_step(torch.ones(sum(ROWS)), captions.lengths)
    torch.testing.assert_close(
        forced.log_prob.grad * running, -0.7 * torch.tensor(rewards, dtype=torch.double) / sum(ROWS)
    )
    torch.testing.assert_close(forced.entropy.grad * running, -0.3 * running.double() / sum(ROWS))


def test_each_sample_of_a_caption_keeps_its_words_and_weight_and_has_its_own_seed() -> None:
    batch = replace(
        repeated(0, captions=3, samples=1),
        image_index=torch.tensor([0, 1, 0]),
        targets=torch.tensor([[4, 2], [5, 2], [6, 2]]),
        weights=torch.tensor([1.0, 2.0, 3.0]),
    )
    twice = batch.repeated(2)
    assert twice.image_index.tolist() == [0, 0, 1, 1, 0, 0]
    assert twice.targets[:, 0].tolist() == [4, 4, 5, 5, 6, 6]
    assert twice.weights.tolist() == [1, 1, 2, 2, 3, 3]
    assert len(set(twice.seeds.tolist())) == 6
    assert (twice.words, twice.captions) == (12, 6)


def test_the_moving_average_is_the_papers_recursion_a_word() -> None:
    hard = Reinforce(replace(NONE, baseline="moving_average"))
    average, weight = 0.0, 0.0
    for batch in range(6):
        forced, log_probs, captions = random_forced(batch)
        rewards, counts = plain_rewards(log_probs, "future")
        mean = average / weight if weight else 0.0
        expected = -sum(
            (rewards[row][t] - counts[row][t] * mean) * forced.log_prob[row, t].item()
            for row in range(4)
            for t in range(4)
        )
        loss, _ = hard(forced, log_probs, captions)
        assert loss.item() == pytest.approx(expected / sum(ROWS), rel=1e-10)
        average = 0.9 * average + 0.1 * log_probs.mean().item()
        weight = 0.9 * weight + 0.1
        state = hard.state_dict()  # under the names of earlier runs
        assert state["baseline.average"].item() == pytest.approx(average, rel=1e-12)
        assert state["baseline.batches"].item() == batch + 1


def test_a_loss_that_is_not_finite_leaves_the_moving_average_as_it_was() -> None:
    """The step of it is skipped, and so is its reward."""
    hard = hard_loss("moving_average", "future")
    forced, log_probs, captions = random_forced(0)
    hard(forced, log_probs, captions)
    before = copy.deepcopy(hard.state_dict())
    hard(forced, torch.full_like(log_probs, -torch.inf), captions)
    torch.testing.assert_close(dict(hard.state_dict()), dict(before), rtol=0, atol=0)


@pytest.mark.parametrize("samples", [2, 3])
def test_leave_one_out_is_a_plain_loop_over_the_other_samples(samples: int) -> None:
    rewards = torch.randn(2 * samples, T, dtype=torch.double)
    hard = Reinforce(HardConfig(baseline="leave_one_out", samples=samples))
    found = hard._baseline(rewards, torch.ones_like(rewards), 2 * samples * T)
    for caption, sample, t in product(range(2), range(samples), range(T)):
        own = caption * samples + sample
        others = [caption * samples + other for other in range(samples) if other != sample]
        expected = sum(rewards[other, t].item() for other in others) / (samples - 1)
        assert found[own, t].item() == pytest.approx(expected, rel=1e-12)
