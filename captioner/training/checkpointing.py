"""Checkpoints of a run: the model folder and everything else that a resumed run needs."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import captioner
from captioner.checkpoint import load_training_state, load_weights, save_model
from captioner.errors import CheckpointError
from captioner.evaluation.bias import Counts
from captioner.log import logger
from captioner.training.model_card import model_card
from captioner.training.optimizer import load_optimizer_state

if TYPE_CHECKING:
    from captioner.training.trainer import Trainer

COUNTERS = (
    *("epoch", "batch", "step", "skipped_steps", "best", "bad_epochs", "drops"),
    *("figures", "last_validation"),
)  # attributes of the trainer that a checkpoint holds as they are


PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow")  # whose versions it names


def save_checkpoint(
    trainer: Trainer, folder: Path, *, with_state: bool, bias: Counts | None = None
) -> None:
    """Write the evaluated model as a model folder, with the training state if asked for.

    Args:
        trainer: State of the run.
        folder: To be written.
        with_state: Also write what a resumed run needs.
        bias: For the model card.

    Raises:
        CheckpointError: The disk cannot hold it.
    """
    save_model(
        folder,
        trainer.evaluated_model,
        trainer.config,
        trainer.setup.vocabulary,
        card=model_card(
            trainer.config, trainer.figures, {**made_with(), **trainer.setup.data_digests}, bias
        ),
        training_state=_training_state(trainer) if with_state else None,
    )


def _training_state(trainer: Trainer) -> dict[str, Any]:
    state: dict[str, Any] = {
        **{name: getattr(trainer, name) for name in COUNTERS},
        "optimizer": trainer.optimizer.state_dict(),
        "data": trainer.setup.data_digests,
        "made_with": made_with(),
        "config": asdict(trainer.config),
        "task": trainer.task.training_state(),
    }
    if trainer.averaged:  # the model file holds the averaged weights
        state["raw"] = {
            name: value
            for name, value in trainer.model.state_dict().items()
            if not name.startswith("encoder.backbone.") or trainer.config.encoder.trainable_from
        }
    return state


def _check_data(folder: Path, before: dict[str, str], now: dict[str, str]) -> None:
    """Refuse to resume with other data; of photos only the times of change may differ.

    Bytes decide, as far as both have hashes of them: a photo may change and keep its time.

    Raises:
        CheckpointError: Captions or photos are not those that the run began with.
    """
    changed = []
    for name in (
        "training captions",
        "validation captions",
        "training photos",
        "validation photos",
    ):
        contents = {key for key in before if key in now and key.endswith(f" bytes of {name}")}
        same_bytes = all(before[key] == now[key] for key in contents)
        if before[name] == now[name] and same_bytes:
            continue
        if contents and same_bytes:
            logger.info(
                f"{name}: other times of change than when the run began, but the same bytes; "
                "going on"
            )
            continue
        changed.append(name)
    if changed:
        raise CheckpointError(
            f"{folder}: this run began with other {' and '.join(changed)} than those that the "
            "settings of data name now; resume with its own, or start another run"
        )


def _report_other_origin(folder: Path, before: dict[str, str]) -> None:
    """Say in which versions and threads this process differs from the one that wrote it."""
    now = made_with()
    differing = [
        f"{name} {before[name]} (now {now[name]})"
        for name in before
        if name in now and name != "revision" and before[name] != now[name]
    ]
    if differing:
        logger.warning(
            f"{folder}: written with {', '.join(differing)}; the run goes on, but perhaps not to "
            "the last bit as it would have there"
        )


def restore_checkpoint(trainer: Trainer, folder: Path) -> None:
    """Go back to a checkpoint.

    Raises:
        CheckpointError: It does not belong to this recipe or data, or an earlier version wrote it.
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
        if trainer.averaged:
            trainer.model.load_state_dict(state["raw"], strict=False)
        load_optimizer_state(trainer.optimizer, state["optimizer"])
        trainer.task.load_training_state(state["task"])
        for name in COUNTERS:
            own = type(getattr(trainer, name))
            if not isinstance(state[name], own):
                raise TypeError(f"{name} is {state[name]!r:.50}, not of type {own.__name__}")
            setattr(trainer, name, state[name])
        if trainer.figures:  # `train.metric` may be another one now
            trainer.best = trainer.figures[trainer.config.train.metric]
    except (CheckpointError, torch.OutOfMemoryError):
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"{folder}: does not fit this recipe ({error}); resume with the run's own settings"
        ) from None


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
