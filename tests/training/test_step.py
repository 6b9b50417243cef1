"""One optimizer step: rates, clipping, and gradients that are not finite."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import tiny
import torch

from captioner.runtime.processes import DeferredInterrupts
from captioner.training.optimizer import build_optimizer
from captioner.training.setup import Setup, prepare
from captioner.training.step import StepOutput, with_counts

CPU = torch.device("cpu")


@pytest.fixture
def setup(table: Path, tmp_path: Path) -> Setup:
    return prepare(tiny.recipe(table, tmp_path / "run", attention__select="hard"), CPU)


def take(
    setup: Setup, optimizer: torch.optim.Optimizer, *, factor: float = 1.0, clip_norm: float = 0.0
) -> StepOutput:
    batch, settings = setup.dataset[(0, range(6))], {"clip_norm": clip_norm}
    return tiny.step(setup.task.train(), batch, optimizer, learning_rate_factor=factor, **settings)


def test_a_step_trains_the_model_at_the_rate_of_the_schedule(setup: Setup) -> None:
    optimizer = build_optimizer(setup.task, setup.config.optim)
    before = copy.deepcopy(setup.task.state_dict())
    assert take(setup, optimizer, factor=0.5).updated
    assert {group["lr"] for group in optimizer.param_groups} == {5e-3 / 2}
    assert {group["base_lr"] for group in optimizer.param_groups} == {5e-3}
    after = setup.task.state_dict()
    name = "model.decoder.vocabulary.weight"
    assert not torch.equal(after[name], before[name])
    assert all(parameter.grad is None for parameter in setup.task.parameters())


def test_the_norm_is_of_the_gradient_that_is_clipped(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = build_optimizer(setup.task, setup.config.optim)
    found: dict[str, torch.Tensor] = {}

    def record() -> None:
        named = setup.task.named_parameters()
        found.update({name: p.grad.clone() for name, p in named if p.grad is not None})

    monkeypatch.setattr(optimizer, "step", record)
    norms = []
    for clip_norm in (0.0, 0.01):
        torch.manual_seed(0)
        norms.append(float(take(setup, optimizer, clip_norm=clip_norm).gradient_norm))
        norm = float(torch.stack([value.norm() for value in found.values()]).norm())
        assert norm == pytest.approx(0.01 if clip_norm else norms[0], rel=1e-3)
    assert norms[0] == norms[1] > 0.01


def test_a_batch_without_a_readable_photo_is_left_out(setup: Setup) -> None:
    batch, empty = (setup.dataset[(0, range(captions))] for captions in (6, 0))
    with DeferredInterrupts() as interrupts:
        (found,) = with_counts([empty, batch], interrupts)
    assert (found.words, found.captions) == (batch.words, 6)


def test_a_step_that_is_not_finite_changes_nothing(setup: Setup) -> None:
    optimizer = build_optimizer(setup.task, setup.config.optim)
    take(setup, optimizer)
    word = int(setup.dataset[(0, range(6))].targets[0, 0])
    bias = setup.task.get_parameter("model.decoder.vocabulary.bias")
    usual = bias[word].item()
    with torch.no_grad():
        bias[word] = -torch.inf  # so that a caption is impossible
    weights, state = (copy.deepcopy(each.state_dict()) for each in (setup.task, optimizer))
    step = take(setup, optimizer, factor=1.0)
    assert not step.updated
    assert not torch.isfinite(step.gradient_norm)
    for name, value in setup.task.state_dict().items():
        assert torch.equal(value, weights[name]), name
    for number, moments in optimizer.state_dict()["state"].items():
        for name, value in moments.items():
            assert torch.equal(value, state["state"][number][name]), name
    with torch.no_grad():
        bias[word] = usual
    assert take(setup, optimizer).updated
