"""Steps of fixed shapes: equal to packed ones, without a number asked of the device or a graph break."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from pretend_gpu import CUDA, PretendedGPU, move
from replay import HARD, CPUGraphs
from replay import KINDS as KINDS_OF_MODELS

from benchmarks.kernels import kernels_of_a_step
from captioner.data.batch import Batch
from captioner.runtime.cuda_graphs import GraphCache
from captioner.training.capture import FixedShapeStep, pad_batch, step_kind
from captioner.training.distillation import Teachers
from captioner.training.optimizer import build_optimizer
from captioner.training.setup import Setup, prepare
from captioner.training.step import training_step
from captioner.training.task import TrainingTask
from captioner.training.trainer import Trainer

CPU = torch.device("cpu")
KINDS: dict[str, dict[str, object]] = {
    **KINDS_OF_MODELS,
    "soft": {"loss__label_smoothing": 0.1},
    "hard, moving average": {**HARD, "hard__baseline": "moving_average", "hard__credit": "caption"},
    "effect of attention": {**HARD, "loss__attention_effect": 0.8},
    "taught": {"loss__attention_distillation": 0.5},
}


def ready(table: Path, changed: dict[str, object]) -> Setup:
    recipe = tiny.recipe(table, table / "run", **{**tiny.NO_DROPOUT, **changed})
    setup = prepare(recipe, CPU)
    if "loss__attention_distillation" in changed:
        dtype = torch.get_default_dtype()
        teacher = prepare(replace(recipe, train=replace(recipe.train, seed=2)), CPU).task.model
        setup.task.teachers = Teachers([teacher.to(dtype)], attention=True)
    return setup


def weighted(batch: Batch) -> Batch:
    return replace(batch, weights=torch.rand(len(batch), dtype=torch.get_default_dtype()) + 0.5)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("kind", KINDS)
def test_a_padded_batch_has_the_loss_metrics_and_gradients_of_a_packed_one(
    drawn_photos: Path, kind: str
) -> None:
    setup = ready(drawn_photos, KINDS[kind])
    batch = weighted(setup.dataset[(0, range(7))])
    padded = pad_batch(batch.to(CPU), images=6, captions=10, steps=11)
    results = []
    for each in (batch.to(CPU), padded):
        task = copy.deepcopy(setup.task).double().train()
        torch.manual_seed(1)
        output = task(each)
        output.loss.backward()
        found = {name: p.grad for name, p in task.named_parameters() if p.requires_grad}
        buffers = {f"buffer {name}": value for name, value in task.named_buffers()}
        results.append({**output.metrics, "loss": output.loss.detach(), **found, **buffers})
    assert results[0].keys() == results[1].keys()
    for name, expected in results[0].items():
        torch.testing.assert_close(results[1][name], expected, rtol=1e-12, atol=1e-12, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_of_a_padded_batch_is_one_graph_without_a_break(
    drawn_photos: Path, kind: str
) -> None:
    setup = ready(drawn_photos, KINDS[kind])
    batch = weighted(setup.dataset[(0, range(7))]).to(CPU)
    batch = pad_batch(batch, 6, 10, int(batch.lengths[0]) + 1)  # each step is traced
    torch.compiler.reset()
    task = copy.deepcopy(setup.task).train()  # a moving average remembers its batches
    compiled = torch.compile(task, fullgraph=True, dynamic=False, backend="eager")
    torch.testing.assert_close(compiled(batch).loss, setup.task.train()(batch).loss)


def step_of_fixed_shapes(setup: Setup, task: TrainingTask, **changed: Any) -> FixedShapeStep:
    options: dict[str, Any] = {"clip_norm": 1.0, "autocast": nullcontext(), "device": CPU}
    options |= {"kind": "off", "captions": 4, "longest": 9, **changed}
    return FixedShapeStep(
        task, build_optimizer(task, setup.config.optim, on_device=True), **options
    )


def steps_of(step: Any, batches: list[list[Batch]]) -> list[dict[str, float]]:
    """Take steps; return the metrics of each, with its norm."""
    found = []
    for number, each in enumerate(batches):
        output = step(each, learning_rate_factor=1 / (1 + number))
        metrics = {name: float(value) for name, value in output.output.metrics.items()}
        found.append(
            {**metrics, "norm": float(output.gradient_norm), "updated": bool(output.updated)}
        )
    return found


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", ["adamw", "adam"])
def test_steps_of_fixed_shapes_are_those_of_packed_batches(drawn_photos: Path, name: str) -> None:
    """Also of two batches each, and of a step that is skipped because its gradient is infinite."""
    setup = ready(drawn_photos, {**HARD, "optim__name": name})
    setup.task.double()
    batches = [[setup.dataset[(0, range(n, n + 4))] for n in (m, m + 4)] for m in (0, 8, 16)]
    batches[1][0] = replace(batches[1][0], weights=torch.full((4,), torch.inf))
    tasks = [copy.deepcopy(setup.task).train() for _ in range(2)]
    packed = partial(
        training_step,
        tasks[0],
        optimizer=build_optimizer(tasks[0], setup.config.optim),
        clip_norm=1.0,
        autocast=nullcontext(),
        device=CPU,
    )
    fixed = step_of_fixed_shapes(setup, tasks[1])
    expected, found = steps_of(packed, batches), steps_of(fixed, batches)
    assert [step["updated"] for step in found] == [True, False, True]
    for one, other in zip(expected[::2], found[::2], strict=True):
        assert other == pytest.approx(one, rel=1e-9)
    for one, other in zip(tasks[0].parameters(), tasks[1].parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("kind", ["soft", "hard, moving average"])
def test_replayed_steps_change_the_weights_as_those_computed_kernel_by_kernel(
    drawn_photos: Path, kind: str
) -> None:
    """Steps of two batches and of one, whose images and counts differ, at falling rates."""
    setup = ready(drawn_photos, {**KINDS[kind], "decoder__dropout": 0.3})
    images = [[range(4), range(4, 8)], [range(8, 12), range(12, 15)], [range(16, 20)], [range(3)]]
    batches = [[setup.dataset[(0, each)] for each in step] for step in images]
    tasks = []
    for graphs in (GraphCache(record=False), CPUGraphs()):
        tasks.append(copy.deepcopy(setup.task).train())
        step = step_of_fixed_shapes(setup, tasks[-1])
        step.graphs = step.updates = graphs
        assert all(each["updated"] for each in steps_of(step, batches))
    assert all(graph.replays > 1 for graph, _ in graphs.graphs.values())
    state = tasks[0].state_dict()
    for name, value in tasks[1].state_dict().items():
        assert torch.equal(value, state[name]), name


@pytest.mark.parametrize("kind", ["soft", "hard", "hard, moving average", "transformer"])
def test_a_step_of_fixed_shapes_never_waits_for_the_gpu(drawn_photos: Path, kind: str) -> None:
    """A graph cannot hold a wait, nor a copy from the CPU."""
    setup = ready(drawn_photos, KINDS[kind])
    batches = [setup.dataset[(0, range(n, n + 4))] for n in (0, 4)]
    with PretendedGPU() as gpu:
        move(setup.task)
        step = step_of_fixed_shapes(setup, setup.task.train(), device=CUDA, captions=8)
        step(batches, learning_rate_factor=1.0)
        step(batches[:1], learning_rate_factor=0.5)
    assert not gpu.waits


def test_each_process_pads_to_its_own_share_of_a_batch(
    drawn_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("captioner.training.trainer.world_size", lambda: 8)
    setup = ready(drawn_photos, {"data__batch_size": 60, "train__compile": "inductor"})
    assert Trainer(setup, tmp_path, CPU).take_step.captions == 8


def test_without_a_compiler_the_same_steps_are_taken(
    drawn_photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("no-such-compiler",))
    monkeypatch.setattr(torch._inductor.config, "force_disable_caches", True)
    losses = []
    for kind in ("off", "inductor"):
        setup = ready(drawn_photos, {"train__compile": kind, "data__max_words": 1})
        step = step_of_fixed_shapes(setup, setup.task.train(), kind=kind, captions=4, longest=2)
        output = step([setup.dataset[(0, range(4))]], learning_rate_factor=1.0).output
        losses.append(output.loss.item())
    assert losses[0] == losses[1]
    said = capsys.readouterr().err
    assert "without inductor, because " in said, said
    assert "no-such-compiler" in said, said


def test_shapes_are_few_and_hold_their_batches(drawn_photos: Path) -> None:
    setup = ready(drawn_photos, {})
    step = step_of_fixed_shapes(setup, setup.task.train(), captions=8, longest=30)
    for count in (8, 3, 20):
        step([setup.dataset[(0, range(count))]], learning_rate_factor=1.0)
    assert step.shapes == {(16, 16, 12), (16, 32, 12)}
    assert step.steps == (12, 16, 20, 28, 30)


@pytest.mark.parametrize(
    ("changed", "device", "processes", "kind"),
    [
        ({}, "cuda", 1, "graphs"),
        ({}, "cpu", 1, "off"),
        ({"train__compile": "inductor"}, "cpu", 1, "inductor"),
        ({"train__compile": "graphs"}, "cpu", 1, "a GPU"),
        ({}, "cuda", 2, "graphs"),
        ({**HARD, "hard__baseline": "moving_average"}, "cuda", 1, "graphs"),
        ({**HARD, "hard__baseline": "moving_average"}, "cuda", 2, "moving average"),
        ({"self_critical__samples": 2}, "cuda", 1, "self-critical"),
        ({"optim__name": "rmsprop"}, "cuda", 1, "rmsprop"),
        ({"encoder__trainable_from": "layer4", "encoder__batch_norm": "train"}, "cuda", 1,
         "batch norm"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_recorded_is_computed_kernel_by_kernel_and_said(
    changed: dict[str, object],
    device: str,
    processes: int,
    kind: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = step_kind(tiny.recipe(Path(), Path(), **changed), torch.device(device), processes)
    said = capsys.readouterr().err
    assert (found, said) == (kind, "") if kind in ("graphs", "inductor", "off") else kind in said


@pytest.mark.parametrize(("select", "most"), [("soft", (1120, 40)), ("hard", (1560, 40))])
def test_a_step_starts_no_more_kernels_than_before(
    select: str, most: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU computes them faster than Python starts them; `python -m benchmarks.kernels`."""
    for name, count in (("CAPTIONS", 4), ("WORDS", 6)):  # 32 captions take as many
        monkeypatch.setattr(f"benchmarks.kernels.{name}", count)
    assert kernels_of_a_step(select, "padded") <= most[0]
    assert kernels_of_a_step(select, "graphs") <= most[1]
