"""The schedule, the groups of weights and the averaged weights, against plain loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from captioner.config import AttentionConfig, DecoderConfig, EncoderConfig
from captioner.config.settings import LossConfig, OptimConfig
from captioner.models.backbones.backbone import Backbone, Preprocessing
from captioner.models.build import build_decoder
from captioner.models.model import CaptionModel, Encoder
from captioner.training.cross_entropy import CrossEntropyTask
from captioner.training.optimizer import AveragedModel, GravesRMSprop, build_optimizer
from captioner.training.step import learning_rate_factor


def small_model(
    *, trainable_from: str | None = "second", tie_embeddings: bool = False
) -> CaptionModel:
    torch.manual_seed(0)
    stages: list[tuple[str, nn.Module]] = [
        (name, nn.Sequential(nn.Conv2d(channels, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU()))
        for name, channels in (("first", 3), ("second", 4))
    ]
    backbone = Backbone(stages, channels=4, preprocessing=Preprocessing())
    settings = EncoderConfig(trainable_from=trainable_from, batch_norm="train", project_dim=6)
    encoder = Encoder(backbone, settings)
    decoder = build_decoder(
        DecoderConfig(hidden_dim=5, embed_dim=7, gate="vector", tie_embeddings=tie_embeddings),
        AttentionConfig(dim=3),
        feature_dim=6,
        vocabulary_size=11,
    )
    return CaptionModel(encoder, decoder)


def settings_by_name(model: CaptionModel, config: OptimConfig) -> dict[str, dict[str, Any]]:
    """Return the settings of each optimized parameter; those of the model without `model.`."""
    task = CrossEntropyTask(model, LossConfig())
    names = {id(p): name.removeprefix("model.") for name, p in task.named_parameters()}
    optimizer = build_optimizer(task, config)
    found = [
        (names[id(parameter)], {k: group[k] for k in ("lr", "base_lr", "weight_decay")})
        for group in optimizer.param_groups
        for parameter in group["params"]
    ]
    assert len({name for name, _ in found}) == len(found), "no weight twice"
    return dict(found)


@pytest.mark.parametrize("tie_embeddings", [False, True])
@pytest.mark.parametrize("kind", ["adamw", "adam", "rmsprop"])
def test_each_weight_has_its_rate_and_only_matrices_decay(kind: Any, tie_embeddings: bool) -> None:
    model = small_model(tie_embeddings=tie_embeddings)
    config = OptimConfig(name=kind, lr=1e-3, encoder_lr=1e-4, weight_decay=0.03)
    found = settings_by_name(model, config)
    assert set(found) == {name for name, p in model.named_parameters() if p.requires_grad}
    decaying = set()
    for name, settings in found.items():
        rate = 1e-4 if name.startswith("encoder.backbone.") else 1e-3
        assert settings["lr"] == settings["base_lr"] == rate, name
        assert settings["weight_decay"] in (0.0, 0.03)
        if settings["weight_decay"]:
            decaying.add(name)
    matrices = {
        "encoder.backbone.stages.1.0.weight",
        "encoder.project.0.weight",
        "decoder.attention.score.key.weight",
        "decoder.attention.score.query.weight",
        "decoder.attention.score.energy.weight",
        "decoder.initial_h.weight",
        "decoder.initial_c.weight",
        "decoder.word_gates.weight",
        "decoder.state_gates.weight",
        "decoder.beta.weight",
        "decoder.from_h.weight",
        "decoder.from_context.weight",
    }
    assert decaying == (matrices if tie_embeddings else {*matrices, "decoder.vocabulary.weight"})
    assert "decoder.embedding.weight" in found


def factors(steps: int, **settings: Any) -> list[float]:
    config = OptimConfig(**{"warmup_steps": 0, **settings})
    return [learning_rate_factor(step, steps, config) for step in range(steps)]


@pytest.mark.parametrize("schedule", ["constant", "cosine", "plateau"])
def test_warm_up_rises_in_equal_steps_to_the_whole_rate(schedule: str) -> None:
    found = factors(100, schedule=schedule, warmup_steps=8)
    assert found[:8] == pytest.approx([step / 8 for step in range(1, 9)])
    assert found[8] == 1.0
    assert max(found) == 1.0


def test_a_cosine_is_half_a_wave_from_the_end_of_the_warm_up_to_zero() -> None:
    found = factors(50, schedule="cosine", warmup_steps=10)
    for step in range(10, 50):
        expected = (1 + math.cos(math.pi * (step - 10) / 40)) / 2
        assert found[step] == pytest.approx(expected, abs=1e-12)
    assert found[30] == pytest.approx(0.5)
    assert found[10:] == sorted(found[10:], reverse=True)
    config = OptimConfig(schedule="cosine", warmup_steps=10)
    assert learning_rate_factor(50, 50, config) == pytest.approx(0.0, abs=1e-12)
    assert learning_rate_factor(80, 50, config) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_averaged_weights_are_a_plain_moving_average(tie_embeddings: bool) -> None:
    model = small_model(tie_embeddings=tie_embeddings)
    averaged = AveragedModel(model, decay=0.6)
    expected = {name: value.double() for name, value in model.named_parameters()}
    for step in range(12):
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter))
        decay = min(0.6, (1 + step) / (10 + step))
        for name, value in model.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * value.detach().double()
        averaged.update(model, step)
    own = dict(averaged.model.named_parameters())
    assert own.keys() == expected.keys()
    for name, value in own.items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-5, atol=1e-5)
    latest = dict(model.named_parameters())["decoder.from_h.weight"]
    assert (own["decoder.from_h.weight"] - latest).abs().max() > 1e-2
    if tie_embeddings:
        decoder: Any = averaged.model.decoder
        assert decoder.vocabulary.weight is decoder.embedding.weight


def test_running_statistics_are_copied_and_not_averaged() -> None:
    model = small_model()
    averaged = AveragedModel(model, decay=0.9)
    model.train()
    for step in range(3):
        model.encoder(torch.randn(4, 3, 16, 16))
        averaged.update(model, step)
    own, theirs = dict(averaged.model.named_buffers()), dict(model.named_buffers())
    assert own.keys() == theirs.keys()
    assert all(torch.equal(own[name], theirs[name]) for name in own)
    assert own["encoder.backbone.stages.1.1.num_batches_tracked"] == 3
    assert own["encoder.backbone.stages.0.1.num_batches_tracked"] == 0


def graves(
    start: float, gradients: list[float], lr: float, alpha: float, momentum: float, eps: float,
    weight_decay: float,
) -> float:  # fmt: skip
    """Return the place of one weight after these gradients."""
    weight, n, m, u = start, 0.0, 0.0, 0.0
    for gradient in gradients:
        g = gradient + weight_decay * weight
        n = alpha * n + (1 - alpha) * g * g
        m = alpha * m + (1 - alpha) * g
        u = momentum * u - lr * g / np.sqrt(n - m * m + eps)
        weight += u
    return weight


@pytest.mark.parametrize(
    "settings",
    [(1e-4, 0.95, 0.9, 1e-4, 0.0), (0.1, 0.5, 0.0, 1e-2, 0.0), (0.03, 0.9, 0.8, 1e-6, 0.2)],
)
def test_updates_are_those_of_the_equations(settings: tuple[float, ...]) -> None:
    named = dict(zip(("lr", "alpha", "momentum", "eps", "weight_decay"), settings, strict=True))
    gradients = np.random.default_rng(1).normal(size=(20, 2, 3)) * np.array([[1e-4], [3.0]])
    weights = [nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2)]
    optimizer = GravesRMSprop(weights, named)
    for step in range(20):
        for row, weight in enumerate(weights):
            weight.grad = torch.from_numpy(gradients[step, row].copy())
        optimizer.step()
        for row, weight in enumerate(weights):
            for i in range(3):
                expected = graves(1.0, list(gradients[: step + 1, row, i]), **named)
                assert weight[i].item() == pytest.approx(expected, rel=1e-12)
