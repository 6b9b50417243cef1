"""Self-critical training: the captions drawn, their rewards, the gradient, and that it learns."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from test_reinforce import flat_gradient

from captioner.config import AttentionConfig, DecoderConfig
from captioner.config.settings import SelfCriticalConfig
from captioner.data.batch import Batch
from captioner.data.vocabulary import Vocabulary
from captioner.evaluation.metrics import CiderD
from captioner.generation import SearchOptions, sample, writable
from captioner.models.build import build_decoder
from captioner.training import train
from captioner.training.self_critical import SelfCriticalTask
from captioner.types import Grid

VOCABULARY = Vocabulary(["a", "dog", "cat"])
END = Vocabulary.end


class Model(torch.nn.Module):
    """A decoder that is given its grid instead of a photo."""

    def __init__(self, decoder, cells: int) -> None:
        super().__init__()
        self.decoder, self.cells = decoder, cells

    def encoder(self, inputs, *, from_frozen: bool):
        return Grid(inputs, 1, self.cells)

    def forward(self, grid, batch):
        memory = self.decoder.prepare(grid).select(batch.image_index)
        return self.decoder(memory, batch.tokens, batch.lengths)


def small_model(*, hidden_dim: int, embed_dim: int, dropout: float) -> Model:
    torch.manual_seed(3)
    decoder = build_decoder(
        DecoderConfig(hidden_dim=hidden_dim, embed_dim=embed_dim, dropout=dropout),
        AttentionConfig(dim=4),
        feature_dim=3,
        vocabulary_size=len(VOCABULARY),
    ).double()
    return Model(decoder, 3)


@pytest.fixture
def model() -> Model:
    model = small_model(hidden_dim=5, embed_dim=4, dropout=0.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)
    return model


def images(count: int) -> Batch:
    inputs = torch.randn(
        count, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    none = torch.zeros(0, dtype=torch.long)
    return Batch(inputs, torch.arange(count), none, none, none, 0.0, 0.0, from_frozen=True)


REFERENCES = [
    [["a", "dog", "<end>"], ["dog", "<end>"]],
    [["a", "cat", "<end>"]],
    [["cat", "a", "<end>"]],
]


@pytest.mark.parametrize(("baseline", "temperature"), [("greedy", 1.0), ("leave_one_out", 0.6)])
def test_the_gradient_is_that_of_the_expected_reward(
    model: Model, baseline: Any, temperature: float
) -> None:
    """Against the exact gradient over all captions of one or two words, end tokens included.

    The end is never first: at the first word the model's shares are those among the words. The
    images of the batch differ, and so do their captions.
    """
    reward = CiderD(REFERENCES)
    settings = SelfCriticalConfig(4, baseline, temperature)
    task = SelfCriticalTask(model, reward, VOCABULARY, settings, max_words=2)

    batch = images(3)
    words = [4, 5, 6]
    pairs = list(itertools.product(words, [*words, END]))
    exact = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for image in range(3):
        grid = model.encoder(batch.inputs[image : image + 1], from_frozen=True)
        probabilities, gradients, rewards = [], [], []
        for pair in pairs:
            memory = model.decoder.prepare(grid)
            forced = model.decoder(
                memory, torch.tensor([[VOCABULARY.start, pair[0]]]), torch.tensor([2])
            )
            allowed = [*words, END]
            logits = forced.logits / temperature
            first = logits[0, words].log_softmax(0)[words.index(pair[0])]
            second = logits[1, allowed].log_softmax(0)[allowed.index(pair[1])]
            probabilities.append((first + second).exp().item())
            gradients.append(flat_gradient(first + second, model))
            rewards.append(float(reward.scores([image], [[VOCABULARY.tokens[t] for t in pair]])[0]))
        expected_baseline = float(np.dot(probabilities, rewards))
        if baseline == "greedy":
            options = SearchOptions(num_captions=1, max_words=2)
            tokens, _ = sample(model.decoder, grid, options, draw=lambda s, _: s.argmax(-1))
            likeliest = [VOCABULARY.tokens[t] for t in tokens[0, 0].tolist() if t]
            expected_baseline = float(reward.scores([image], [likeliest])[0])
        for probability, gradient, earned in zip(probabilities, gradients, rewards, strict=True):
            # two tokens a caption
            exact -= probability * (earned - expected_baseline) * gradient / 2 / 3
    torch.manual_seed(0)
    many = replace(
        batch, inputs=batch.inputs.repeat(14, 1, 1), image_numbers=batch.image_numbers.repeat(14)
    )
    steps = torch.stack([flat_gradient(task(many).loss, model) for _ in range(40)])
    error = steps.std(0) / len(steps) ** 0.5
    z = (steps.mean(0) - exact) / error.clamp(min=1e-12)
    assert float(z.abs().max()) < 5.0
    wrong = (steps.mean(0) + exact) / error.clamp(min=1e-12)
    assert float(wrong.abs().max()) > 10.0, "the check would see a wrong sign"


def test_captions_are_read_by_the_network_that_drew_them() -> None:
    """With dropout in one of the two only, words that one draws fall without end in the other."""
    model = small_model(hidden_dim=8, embed_dim=8, dropout=0.9).train()
    grids: list[Grid] = []
    quiet = model.encoder

    def encoder(inputs, *, from_frozen: bool):
        """Another grid each time, as with dropout."""
        grids.append(quiet(8.0 * torch.randn_like(inputs), from_frozen=from_frozen))
        return grids[-1]

    model.encoder = encoder
    task = SelfCriticalTask(
        model, CiderD(REFERENCES), VOCABULARY, SelfCriticalConfig(400), max_words=6
    )
    calls: list[Any] = []
    model.register_forward_hook(lambda *call: calls.append(call))
    result = task(images(1))
    ((_, (_, batch), forced),) = calls
    lengths = batch.lengths
    # Minus log p of what is drawn is the entropy on average, so the words tell it both ways.
    firsts = writable(forced.logits[: len(lengths)], may_end=False)
    others = writable(forced.logits[len(lengths) :], may_end=True)
    log_probs = torch.cat([firsts, others]).log_softmax(-1).clamp(min=-1e9)
    entropies = -(log_probs.exp() * log_probs).sum(-1)
    assert result.metrics["sampled_cross_entropy"].item() == pytest.approx(
        entropies.mean().item(), rel=0.05
    )
    assert len(grids) == 1
    assert model.decoder.training, "it is left as it was"


def test_the_weight_of_a_source_is_a_factor_on_its_images_advantages(model: Model) -> None:
    """Two captions of the first image, which weighs 3; the second weighs 1, or nothing."""
    task = SelfCriticalTask(
        model, CiderD(REFERENCES), VOCABULARY, SelfCriticalConfig(4), max_words=4
    )
    plain = replace(
        images(2), image_index=torch.tensor([0, 1, 0]), image_seeds=torch.tensor([5, 8])
    )

    def loss(*weights: float) -> float:
        first, second = weights
        return task(replace(plain, weights=torch.tensor([first, second, first]))).loss.item()

    whole = task(plain).loss.item()
    assert loss(1.0, 1.0) == pytest.approx(whole)
    assert loss(1.0, 0.0) not in (0.0, whole)
    assert loss(3.0, 1.0) == pytest.approx(whole + 2 * loss(1.0, 0.0))


def test_a_run_on_its_own_captions_begins_with_a_model_and_logs_its_reward(
    table: Path, tmp_path: Path
) -> None:
    first = train(tiny.recipe(table, tmp_path / "first", train__epochs=1))
    second = tiny.recipe(
        table,
        tmp_path / "second",
        self_critical__samples=3,
        train__start_from=str(first),
        train__epochs=1,
    )
    train(second)
    trained = tiny.log_entries(tmp_path / "second", "train")
    assert trained
    assert all(np.isfinite(entry["reward"]) and entry["reward"] >= 0 for entry in trained)
