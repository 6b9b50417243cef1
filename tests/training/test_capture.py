"""Steps of fixed shapes: equal to packed ones, without a number asked of the device or a graph break."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from captioner.data.batch import Batch
from captioner.training.setup import Setup, prepare

CPU = torch.device("cpu")
HARD = {"attention__select": "hard"}
KINDS: dict[str, dict[str, object]] = {
    "soft": {"loss__label_smoothing": 0.1},
    "luong": {"decoder__kind": "luong", "attention__window": "local_p"},
    "top down": {"decoder__kind": "top_down", "attention__window": "local_m"},
    "mean": {"decoder__kind": "mean"},
    "transformer": {"decoder__kind": "transformer", "decoder__heads": 2},
    "self-attention, heads": {"encoder__self_attention_layers": 1, "attention__heads": 2},
    "location": {"attention__score": "location", "decoder__gate": "vector"},
    "hard": HARD,
    "hard, moving average": {**HARD, "hard__baseline": "moving_average", "hard__credit": "caption"},
    "hard, learned baseline": {**HARD, "hard__baseline": "learned"},
    "hard transformer": {**HARD, "decoder__kind": "transformer", "decoder__heads": 2},
    "effect of attention": {**HARD, "loss__attention_effect": 0.8},
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.draw_table(tmp_path_factory.mktemp("table") / "photos")


def ready(table: Path, changed: dict[str, object]) -> Setup:
    recipe = tiny.recipe(table, table / "run", **{**tiny.NO_DROPOUT, **changed})
    return prepare(recipe, CPU)


@pytest.fixture
def in_float64() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def weighted(batch: Batch) -> Batch:
    return replace(batch, weights=torch.rand(len(batch), dtype=torch.get_default_dtype()) + 0.5)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("kind", KINDS)
def test_a_padded_batch_has_the_loss_metrics_and_gradients_of_a_packed_one(
    table: Path, kind: str
) -> None:
    setup = ready(table, KINDS[kind])
    batch = weighted(setup.dataset[(0, range(7))])
    padded = batch.padded(images=6, captions=10, steps=11)
    results = []
    for each in (batch, padded):
        task = copy.deepcopy(setup.task).double().train()
        torch.manual_seed(1)
        output = task(each.to(CPU))
        output.loss.backward()
        found = {name: p.grad for name, p in task.named_parameters() if p.requires_grad}
        buffers = {f"buffer {name}": value for name, value in task.named_buffers()}
        results.append({**output.metrics, "loss": output.loss.detach(), **found, **buffers})
    assert results[0].keys() == results[1].keys()
    for name, expected in results[0].items():
        torch.testing.assert_close(results[1][name], expected, rtol=1e-12, atol=1e-12, msg=name)


@pytest.mark.parametrize(
    "kind",
    [k if k in ("soft", "hard") else pytest.param(k, marks=pytest.mark.slow) for k in KINDS],
)
def test_the_loss_of_a_padded_batch_is_one_graph_without_a_break(table: Path, kind: str) -> None:
    setup = ready(table, KINDS[kind])
    batch = weighted(setup.dataset[(0, range(7))]).padded(6, 10, 11).to(CPU)
    torch.compiler.reset()
    compiled = torch.compile(setup.task.train(), fullgraph=True, dynamic=False, backend="eager")
    torch.testing.assert_close(compiled(batch).loss, setup.task(batch).loss)
