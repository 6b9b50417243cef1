"""A task owns all that training learns: parameters, state, and the gradients of each of its kinds."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import torch.distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from captioner.data.batch import Batch, pack_by_step, unpack_by_step
from captioner.models.attention.attention import Attention
from captioner.training.optimizer import build_optimizer
from captioner.training.setup import Setup, prepare

CPU = torch.device("cpu")
AVERAGE = {"attention__select": "hard", "hard__baseline": "moving_average"}
KINDS: dict[str, dict[str, object]] = {
    "soft": {},
    "fine-tuned": {"encoder__trainable_from": "layer4"},
    "transformer": {"decoder__kind": "transformer"},
    "hard, moving average": AVERAGE,
    "hard, effect of attention": {"attention__select": "hard", "loss__attention_effect": 0.8},
    "self-critical": {"self_critical__samples": 3},
}


def ready(table: Path, changed: dict[str, object]) -> Setup:
    """Return what a recipe of drawn photos works with, on the CPU."""
    return prepare(tiny.recipe(table, table / "run", **changed), CPU)


def first_batch(setup: Setup) -> Batch:
    return setup.dataset[(0, range(6))].to(CPU)


def gradients(task: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    return {
        n.removeprefix("module."): p.grad for n, p in task.named_parameters() if p.requires_grad
    }


@pytest.fixture(scope="module")
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A group of this process alone."""
    store = tmp_path_factory.mktemp("group") / "store"
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("kind", KINDS)
def test_a_task_can_be_wrapped_as_it_is_for_several_processes(table: Path, kind: str) -> None:
    setup = ready(table, KINDS[kind])
    batch = first_batch(setup)
    bare = setup.task.train()
    wrapped = DistributedDataParallel(copy.deepcopy(bare))
    losses = []
    tasks: list[Any] = [bare, wrapped]
    for task in tasks:
        torch.manual_seed(3)
        loss = task(batch).loss
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == losses[1]
    expected = gradients(bare)
    for name, gradient in gradients(wrapped).items():
        assert gradient is not None, f"{name}: another process would wait for it"
        assert torch.equal(gradient, expected[name]), name
    # Twice, because what a step leaves unused is found out by the next one.
    optimizer = build_optimizer(wrapped.module, setup.config.optim)
    before = {name: p.detach().clone() for name, p in wrapped.module.named_parameters()}
    for _ in range(2):
        assert tiny.step(wrapped, batch, optimizer).updated
    unchanged = {
        name
        for name, p in wrapped.module.named_parameters()
        if p.requires_grad and torch.equal(p, before[name])
    }
    assert not unchanged


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_the_effect_of_attention_is_that_of_random_cells_drawn_anew(table: Path, kind: str) -> None:
    """Where all scores are zero, the model's own cells are random ones."""
    hard = {"attention__select": "hard", "decoder__kind": kind, **tiny.NO_DROPOUT}
    effect = {"loss__attention_effect": 0.8, "loss__attention_effect_weight": 3.0}
    without = ready(table, hard)
    setup = ready(table, hard | effect)
    batch = first_batch(setup)
    calls: list[tuple[Any, ...]] = []
    setup.task.model.register_forward_pre_hook(lambda _, given: calls.append(given))
    metrics = setup.task.train()(batch).metrics
    (grid, repeated, own_seeds), (*_, seeds) = calls
    assert set(own_seeds.tolist()).isdisjoint(seeds.tolist())
    model = setup.task.model
    own = model(grid, repeated, own_seeds)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Attention):
                for parameter in module.score.parameters():
                    parameter.zero_()
    at_random = model(grid, repeated, seeds)
    targets, lengths = repeated.targets, repeated.lengths
    losses = [
        unpack_by_step(
            functional.cross_entropy(
                output.logits, pack_by_step(targets, lengths), reduction="none"
            ),
            lengths,
        ).sum(1)
        for output in (own, at_random)
    ]
    lost = losses[1] - losses[0]
    assert metrics["random_cell_loss"].item() == pytest.approx(
        lost.sum().item() / int(lengths.sum()), rel=1e-4, abs=1e-6
    )
    expected = 3 * (0.8 * lengths - lost).abs().sum().item() / int(lengths.sum())
    added = metrics["total"] - without.task.train()(batch).metrics["total"]
    assert added.item() == pytest.approx(expected, rel=1e-4)
