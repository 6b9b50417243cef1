"""A task owns all that training learns: parameters, state, and the gradients of each of its kinds."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import torch.distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from captioner.data.batch import Batch
from captioner.models.attention.attention import Attention
from captioner.models.decoders.base import pack_by_step, unpack_by_step
from captioner.training.cross_entropy import CrossEntropyTask
from captioner.training.optimizer import build_optimizer
from captioner.training.reinforce import repeat_captions
from captioner.training.setup import Setup, prepare
from captioner.training.step import training_step
from captioner.training.task import TrainingTask

CPU = torch.device("cpu")
LEARNED = {"attention__select": "hard", "hard__baseline": "learned"}
KINDS: dict[str, dict[str, object]] = {
    "soft": {},
    "fine-tuned": {"encoder__trainable_from": "layer4"},
    "transformer": {"decoder__kind": "transformer"},
    "hard, learned baseline": LEARNED,
    "hard, moving average": {"attention__select": "hard", "hard__baseline": "moving_average"},
    "hard, effect of attention": {"attention__select": "hard", "loss__attention_effect": 0.8},
    "self-critical": {"self_critical__samples": 3},
    "word concepts and texts": {"loss__visual_concepts": 0.5, "text__file": "texts.tsv"},
}


def ready(folder: Path, changed: dict[str, object]) -> Setup:
    """Return what a recipe of this folder's photos works with, on the CPU."""
    if "text__file" in changed:
        (folder / "texts.tsv").write_text("1\ta red disc\n1\ta blue disc\n2\ta disc\n2\ta square\n")
        changed = {**changed, "text__file": str(folder / "texts.tsv")}
    return prepare(tiny.recipe(folder / "photos", folder / "run", **changed), CPU)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    tiny.draw_table(folder / "photos")
    return folder


def first_batch(setup: Setup, count: int = 6) -> Batch:
    return setup.dataset[(0, range(count))].to(CPU)


def gradients(task: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    return {
        n.removeprefix("module."): p.grad for n, p in task.named_parameters() if p.requires_grad
    }


def full_task(folder: Path) -> tuple[CrossEntropyTask, Batch]:
    """Return a task with everything that is learned in addition to the model, and its batch."""
    setup = ready(folder, {**KINDS["word concepts and texts"], **LEARNED})
    assert isinstance(setup.task, CrossEntropyTask)
    task = CrossEntropyTask(
        setup.task.model,
        setup.config.loss,
        reinforce=setup.task.reinforce,
        word_concepts=setup.task.word_concepts,
        styles=2,
    )
    return task.train(), replace(first_batch(setup), styles=torch.tensor([0, 1, 2, 0, 1, 2]))


# --- parameters -----------------------------------------------------------------------------------


def test_everything_that_training_learns_is_a_parameter_and_has_a_gradient(folder: Path) -> None:
    task, batch = full_task(folder)
    torch.manual_seed(0)
    task(batch).loss.backward()
    table = ("words.weight", "norm.weight", "norm.bias", "bias")
    added = {
        "reinforce.baseline.value.weight",
        "reinforce.baseline.value.bias",
        "styles.weight",
        *(f"word_concepts.table.{name}" for name in table),
    }
    found = gradients(task)
    assert {name for name in found if not name.startswith("model.")} == added
    of_model = {f"model.{n}" for n, p in task.model.named_parameters() if p.requires_grad}
    assert {name for name in found if name.startswith("model.")} == of_model
    for name, gradient in found.items():
        assert gradient is not None, name
        assert gradient.abs().sum() > 0, name


# --- state ----------------------------------------------------------------------------------------


def test_the_training_state_goes_through_a_file_and_back(folder: Path) -> None:
    task, batch = full_task(folder)
    optimizer = build_optimizer(task, tiny.recipe(folder, folder).optim)
    for _ in range(2):
        task(batch).loss.backward()
        optimizer.step()
    state = task.training_state()
    assert not any(name.startswith("model.") for name in state), "they are in the model's file"
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    read = torch.load(file, weights_only=True)
    other, _ = full_task(folder)
    before = other.training_state()
    assert read.keys() == state.keys() == before.keys()
    differing = {
        name
        for name, value in read.items()
        if not (
            torch.equal(value, before[name]) if torch.is_tensor(value) else value == before[name]
        )
    }
    assert {
        "styles.weight",
        "reinforce.baseline.value.bias",
        "word_concepts.table.bias",
    } < differing
    assert "word_concepts._extra_state" in differing, "the text captions go on where they were"
    other.load_training_state(read)
    after = other.training_state()
    for name, value in read.items():
        assert torch.equal(value, after[name]) if torch.is_tensor(value) else value == after[name]
    other.model.load_state_dict(task.model.state_dict())
    results = []
    for each in (task, other):
        torch.manual_seed(5)
        results.append(float(each(batch).loss.detach()))
    assert results[0] == results[1], "with the model's weights it is the same task"


def test_the_state_of_another_task_is_refused(folder: Path) -> None:
    task, _ = full_task(folder)
    soft = ready(folder, {}).task
    with pytest.raises(RuntimeError, match="styles"):
        task.load_training_state(soft.training_state())
    with pytest.raises(RuntimeError, match="styles"):
        soft.load_training_state(task.training_state())
    soft.load_training_state({})


# --- several processes ----------------------------------------------------------------------------


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
def test_a_task_can_be_wrapped_as_it_is_for_several_processes(folder: Path, kind: str) -> None:
    setup = ready(folder, KINDS[kind])
    batch = first_batch(setup)
    bare = setup.task.train()
    wrapped = DistributedDataParallel(copy.deepcopy(bare))
    losses = []
    tasks: list[Any] = [bare, wrapped]
    for task in tasks:
        torch.manual_seed(3)
        loss = task(batch).loss
        loss.backward()
        losses.append(float(loss))
    assert losses[0] == losses[1]
    expected = gradients(bare)
    for name, gradient in gradients(wrapped).items():
        assert gradient is not None, f"{name}: another process would wait for it"
        assert torch.equal(gradient, expected[name]), name
    # Twice, because what a step leaves unused is found out by the next one.
    optimizer = build_optimizer(wrapped.module, setup.config.optim)
    before = {name: p.detach().clone() for name, p in wrapped.module.named_parameters()}
    for _ in range(2):
        step = training_step(
            wrapped,
            [batch],
            optimizer,
            learning_rate_factor=1.0,
            clip_norm=5.0,
            autocast=nullcontext(),
            device=CPU,
        )
        assert step.updated
    unchanged = {
        name
        for name, p in wrapped.module.named_parameters()
        if p.requires_grad and torch.equal(p, before[name])
    }
    assert not unchanged


# --- styles ---------------------------------------------------------------------------------------


def styled(folder: Path, **changed: object) -> tuple[CrossEntropyTask, Batch]:
    setup = ready(folder, {**tiny.NO_DROPOUT, **changed})
    task = setup.task
    assert isinstance(task, CrossEntropyTask)
    return CrossEntropyTask(
        task.model, setup.config.loss, reinforce=task.reinforce, styles=2
    ).train(), first_batch(setup)


def loss_of(task: TrainingTask, batch: Batch, styles: list[int] | None) -> torch.Tensor:
    given = replace(batch, styles=None if styles is None else torch.tensor(styles))
    return task(given).loss


STYLES = [0, 1, 2, 0, 1, 0]


@pytest.mark.parametrize("kind", ["lstm", "luong", "top_down", "mean", "transformer"])
def test_a_style_is_learned_and_the_plain_one_adds_nothing(folder: Path, kind: str) -> None:
    task, batch = styled(folder, decoder__kind=kind)
    assert task.styles is not None
    plain = loss_of(task, batch, None)
    loss = loss_of(task, batch, STYLES)
    assert loss.item() == pytest.approx(plain.item(), rel=1e-6), "they begin at zero"
    loss.backward()
    gradient = task.styles.weight.grad
    assert gradient is not None
    assert gradient[0].abs().sum() == 0, "the plain style is never learned"
    assert (gradient[1:].abs().sum(1) > 0).all()
    with torch.no_grad():
        task.styles.weight[1:].normal_()
    assert abs(loss_of(task, batch, STYLES).item() - plain.item()) > 1e-4
    assert loss_of(task, batch, [0] * 6).item() == pytest.approx(plain.item(), rel=1e-6)
    assert loss_of(task, batch, None).item() == plain.item()


def test_each_style_changes_its_own_captions_alone(folder: Path) -> None:
    task, batch = styled(folder)
    assert task.styles is not None
    with torch.no_grad():
        task.styles.weight[1:].normal_()
    first_words = slice(0, len(batch))  # packed by step
    logits: list[torch.Tensor] = []
    task.model.register_forward_hook(lambda *call: logits.append(call[-1].logits[first_words]))
    for styles in (None, torch.tensor(STYLES)):
        task(replace(batch, styles=styles))
    plain, given = logits
    changed = (given - plain).abs().amax(1) > 1e-5
    assert changed.tolist() == [style > 0 for style in STYLES]


def test_the_samples_of_a_caption_have_its_style(folder: Path) -> None:
    """With expected instead of sampled attention, samples are repetitions of the caption."""
    losses = []
    for samples in (1, 2, 3):
        task, batch = styled(
            folder,
            attention__select="hard",
            attention__semi_sampling=1.0,
            hard__samples=samples,
            hard__baseline="none",
        )
        assert task.styles is not None
        torch.manual_seed(0)
        with torch.no_grad():
            task.styles.weight[1:].normal_()
        losses.append(loss_of(task, batch, STYLES).item())
    assert losses[1:] == pytest.approx([losses[0]] * 2, rel=1e-5)


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_the_effect_of_attention_is_that_of_random_cells_drawn_anew(
    folder: Path, kind: str
) -> None:
    """Where all scores are zero, the model's own cells are random ones."""
    hard = {"attention__select": "hard", "decoder__kind": kind, **tiny.NO_DROPOUT}
    effect = {"loss__attention_effect": 0.8, "loss__attention_effect_weight": 3.0}
    without = ready(folder, hard)
    setup = ready(folder, hard | effect)
    batch = first_batch(setup)
    calls: list[tuple[Any, ...]] = []
    setup.task.model.register_forward_pre_hook(lambda _, given: calls.append(given))
    metrics = setup.task.train()(batch).metrics
    (grid, *given, own_seeds), (*_, seeds) = calls
    assert set(own_seeds.tolist()).isdisjoint(seeds.tolist())
    model = setup.task.model
    own = model(grid, *given, own_seeds)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Attention):
                for parameter in module.score.parameters():
                    parameter.zero_()
    at_random = model(grid, *given, seeds)
    targets, lengths = repeat_captions(batch, 2).targets, given[2]
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
        lost.sum().item() / int(lengths.sum()), rel=1e-4
    )
    expected = 3 * (0.8 * lengths - lost).abs().sum().item() / int(lengths.sum())
    added = metrics["total"] - without.task.train()(batch).metrics["total"]
    assert added.item() == pytest.approx(expected, rel=1e-4)
