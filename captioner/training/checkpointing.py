"""Checkpoints of a run: the model folder and everything else that a resumed run needs."""

from __future__ import annotations

import copy
import functools
import math
import os
import platform
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import captioner
from captioner.checkpoint import load_training_state, load_weights, save_model
from captioner.config import TrainConfig
from captioner.errors import CheckpointError, error_summary
from captioner.evaluation.bias import Counts
from captioner.log import logger
from captioner.runtime.distributed import rank
from captioner.training.model_card import model_card
from captioner.training.setup import TEXTS

if TYPE_CHECKING:
    from captioner.training.trainer import Trainer

# Figures of a validation that a checkpoint holds, and which of them are whole numbers.
FIGURES_COUNTS = {"figures": ("epoch",), "last_validation": ("step", "epoch")}
# Attributes of the trainer that a checkpoint holds as they are.
COUNTERS = (
    *("epoch", "batch", "step", "skipped_steps", "best", "bad_epochs", "drops"),
    *FIGURES_COUNTS,
)
MAX_COUNT = 2**40  # of epochs, batches, steps

# Packages whose versions a checkpoint records.
PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow")


def save_checkpoint(
    trainer: Trainer, folder: Path, *, with_state: bool, bias: Counts | None = None
) -> None:
    """Write the evaluated model as a model folder, with the training state if asked for.

    Args:
        trainer: State of the run.
        folder: The folder to write.
        with_state: Also write what a resumed run needs.
        bias: Counts of `bias_counts` for the model card.

    Raises:
        CheckpointError: The disk cannot hold it.
    """
    origin = {**made_with(), **trainer.setup.data_digests}
    save_model(
        folder,
        trainer.evaluated_model,
        trainer.config,
        trainer.setup.vocabulary,
        card=model_card(trainer.config, trainer.figures, origin, bias),
        training_state=_training_state(trainer) if with_state else None,
    )


def _training_state(trainer: Trainer) -> dict[str, Any]:
    """Return all that a resumed run needs in addition to the model folder."""
    state: dict[str, Any] = {
        **{name: getattr(trainer, name) for name in COUNTERS},
        "optimizer": trainer.optimizer.state_dict(),
        "data": trainer.setup.data_digests,
        "made_with": made_with(),
        "config": asdict(trainer.config),
        "task": trainer.task.training_state(),
    }
    if trainer.averaged:  # the model file holds the averaged weights
        state["raw"] = _raw_weights(trainer)
    return state


def _raw_weights(trainer: Trainer) -> dict[str, Tensor]:
    """Return the weights that are averaged, as they are, with the buffers of their modules."""
    return {
        name: value
        for name, value in trainer.model.state_dict().items()
        if not name.startswith("encoder.backbone.") or trainer.config.encoder.trainable_from
    }


def _check_data(folder: Path, before: dict[str, str], now: dict[str, str]) -> None:
    """Refuse to resume with other data; of photos only the times of change may differ.

    Where both have hashes of the bytes, these decide: a photo may change and keep its time.
    """
    changed = []
    names = ("training captions", "validation captions", "training photos", "validation photos")
    for name in names:
        contents = {key for key in before if key in now and key.endswith(f" bytes of {name}")}
        same_bytes = all(before[key] == now[key] for key in contents)
        if before[name] == now[name] and same_bytes:
            continue
        if contents and same_bytes:
            if rank() == 0:  # the others find the same
                logger.info(
                    f"{name}: other times of change than when the run began, but the same bytes; "
                    "going on"
                )
            continue
        changed.append(name)
    both_have_texts = TEXTS in before and TEXTS in now
    if both_have_texts and before[TEXTS] != now[TEXTS] and rank() == 0:
        # accepted, as another name of the file is
        logger.info(f"text.file: other captions than those with which {folder} was written")
    if changed:
        raise CheckpointError(
            f"{folder}: this run began with other {' and '.join(changed)} than those that the "
            "settings of data name now; resume with its own, or start another run"
        )


def _report_other_origin(folder: Path, before: dict[str, str]) -> None:
    """Warn of versions and threads that differ from those that wrote the checkpoint."""
    now = made_with()
    if not all(isinstance(text, str) and text.isprintable() for text in before.values()):
        raise ValueError("made_with holds other things than versions")
    differing = [
        f"{name} {before[name][:50]} (now {now[name]})"
        for name in before
        if name in now and name != "revision" and before[name] != now[name]
    ]
    if differing and rank() == 0:
        logger.warning(
            f"{folder}: written with {', '.join(differing)}; the run goes on, but perhaps not to "
            "the last bit as it would have there"
        )


def restore_checkpoint(trainer: Trainer, folder: Path) -> None:
    """Load a checkpoint into the trainer.

    A manifest that agrees does not prove the state valid: all of it is checked here, so that
    nothing fails in a later step.

    Raises:
        CheckpointError: It does not belong to this recipe or data, it is damaged, or an earlier
            version wrote it.
    """
    state = load_training_state(folder)
    if "objective" in state:
        raise CheckpointError(
            f"{folder}: an earlier version of captioner began this run and this one cannot "
            "resume it; start another run with train.start_from set to this folder"
        )
    try:
        _check_data(folder, state["data"], trainer.setup.data_digests)
        _report_other_origin(folder, state.get("made_with", {}))
        load_weights(trainer.evaluated_model, folder)
        weights = trainer.evaluated_model.state_dict()
        _check_tensors("the weights", weights, weights)
        if trainer.averaged:
            _check_tensors("raw", state["raw"], _raw_weights(trainer))
            trainer.model.load_state_dict(state["raw"], strict=False)
        _restore_optimizer(trainer.optimizer, state["optimizer"])
        _check_tensors("task", state["task"], trainer.task.training_state())
        trainer.task.load_training_state(state["task"])
        _restore_counters(trainer, state)
    except (CheckpointError, torch.OutOfMemoryError):
        raise
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        AssertionError,
        RuntimeError,
    ) as error:
        raise CheckpointError(
            f"{folder}: does not fit this recipe, or is damaged "
            f"({error_summary(error, max_length=300)}); resume with the run's own settings"
        ) from None


def _check_tensors(what: str, saved: Any, own: Mapping[str, object]) -> None:
    """Refuse saved tensors of other names, shapes or types than `own`, NaN, and bad counts."""
    if saved.keys() != own.keys():
        odd = sorted(map(repr, saved.keys() ^ own.keys()))
        raise ValueError(f"{what}: names differ, the first is {odd[0]:.100}")
    for name, value in saved.items():
        expected = own[name]
        if isinstance(expected, int):  # a count that is no tensor
            if type(value) is not int or not 0 <= value < MAX_COUNT:
                raise ValueError(f"{what}: {name} is no count")
            continue
        assert isinstance(expected, Tensor)
        if (
            not isinstance(value, Tensor)
            or (value.shape, value.dtype) != (expected.shape, expected.dtype)
            or value.layout != torch.strided
        ):
            raise ValueError(
                f"{what}: {name} is not of shape {[*expected.shape]}, {expected.dtype}"
            )
        if not torch.isfinite(value).all():
            raise ValueError(f"{what}: {name} holds NaN or infinity")


def _restore_optimizer(optimizer: torch.optim.Optimizer, saved: Any) -> None:
    """Load what the optimizer remembers of each parameter; its settings are those of the recipe."""
    groups = optimizer.state_dict()["param_groups"]
    if [group["params"] for group in saved["param_groups"]] != [g["params"] for g in groups]:
        raise ValueError("optimizer: the groups of parameters differ")
    # PyTorch numbers the parameters in the order of the groups.
    parameters = dict(enumerate(p for g in optimizer.param_groups for p in g["params"]))
    for number, moments in saved["state"].items():
        own = _moments_of_a_step(optimizer, parameters[number])
        _check_tensors(f"optimizer: parameter {number}", moments, own)
        if "step" in moments and moments["step"] < 1:
            raise ValueError(f"optimizer: parameter {number} has made {moments['step']} steps")
    optimizer.load_state_dict({"state": saved["state"], "param_groups": groups})


def _moments_of_a_step(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """Return what the optimizer remembers after the first step of a parameter of this shape."""
    probe = torch.zeros_like(parameter, requires_grad=True)
    probe.grad = torch.zeros_like(parameter)
    twin = copy.copy(optimizer)
    twin.state = defaultdict(dict)
    twin.param_groups = [{**optimizer.param_groups[0], "params": [probe]}]
    twin.step()
    moments: dict[str, Tensor] = twin.state[probe]
    return moments


def _restore_counters(trainer: Trainer, state: dict[str, Any]) -> None:
    """Set the attributes of the trainer that a checkpoint holds as they are."""
    for name in COUNTERS:
        value, own = state[name], type(getattr(trainer, name))
        if not isinstance(value, own):
            raise TypeError(f"{name} is not of type {own.__name__}")
        if isinstance(value, dict):
            _check_figures(name, value)
        elif not (-math.inf <= value < MAX_COUNT and (own is float or value >= 0)):
            raise ValueError(f"{name} is {value:.3g}")
        setattr(trainer, name, value)
    batches = len(trainer.setup.batches.epoch(trainer.epoch))
    if trainer.batch > batches:
        raise ValueError(f"batch is {trainer.batch} of {batches}")
    if trainer.figures:  # `train.metric` and `train.val_source` may be others now
        trainer.best = _decisive_figure(trainer.figures, trainer.config.train)


def _decisive_figure(figures: dict[str, Any], settings: TrainConfig) -> float:
    """Return the figure of a validation that decides by these settings."""
    by_source = {
        name.rpartition("/")[0]: float(value)
        for name, value in figures.items()
        if name.endswith(f"/{settings.metric}")
    }
    if not by_source:  # a single source
        return float(figures[settings.metric])
    if settings.val_source is None:
        return sum(by_source.values()) / len(by_source)
    return by_source.get(settings.val_source, -math.inf)  # none of its photos could be read


def _check_figures(what: str, figures: dict[Any, Any]) -> None:
    """Refuse a dictionary that does not hold the figures of a validation; it may be empty."""
    for name, value in figures.items():
        is_count = isinstance(value, int) and 0 <= value < MAX_COUNT
        if not isinstance(name, str) or not name.isprintable():
            raise TypeError(f"{what} holds names that are no text")
        if not isinstance(value, float) and not is_count:
            raise TypeError(f"{what}: {name[:50]} is no figure")
    for name in FIGURES_COUNTS[what] if figures else ():
        if not isinstance(figures[name], int):
            raise TypeError(f"{what}: {name} is no whole number")


@functools.cache
def made_with() -> dict[str, str]:
    """Return versions and threads by name; `revision` is there only in a checkout with git."""
    found = {"captioner": captioner.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    found["threads"] = str(torch.get_num_threads())
    if revision := _revision(Path(captioner.__file__).parent):
        found["revision"] = revision
    return found


def _revision(folder: Path) -> str:
    """Return the commit of the checkout that the package lies in, with `-dirty` if it was changed.

    Empty where there is none: a package installed below somebody's repository is not part of it.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            check=True,
            text=True,
            timeout=10,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return ""
