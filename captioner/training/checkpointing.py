"""Checkpoints of a run: the model folder and everything else that a resumed run needs."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import captioner
from captioner.checkpoint import load_training_state, load_weights, save_model
from captioner.errors import CheckpointError, error_summary
from captioner.log import logger
from captioner.runtime.distributed import rank
from captioner.training.model_card import model_card

if TYPE_CHECKING:
    from captioner.training.trainer import Trainer

# Attributes of the trainer that a checkpoint holds as they are.
COUNTERS = tuple("epoch batch step best bad_epochs lr_drops figures last_validation".split())

# Packages whose versions a checkpoint records.
PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow")


def save_checkpoint(trainer: Trainer, folder: Path, *, with_state: bool) -> None:
    """Write the evaluated model as a model folder, with the training state if asked for.

    Args:
        trainer: State of the run.
        folder: The folder to write.
        with_state: Also write what a resumed run needs.

    Raises:
        CheckpointError: The disk cannot hold it.
    """
    origin = {**made_with(), **trainer.setup.data_digests}
    save_model(
        folder,
        trainer.evaluated_model,
        trainer.config,
        trainer.setup.vocabulary,
        card=model_card(trainer.config, trainer.figures, origin),
        training_state=_training_state(trainer) if with_state else None,
    )


def _training_state(trainer: Trainer) -> dict[str, Any]:
    """Return all that a resumed run needs in addition to the model folder."""
    state: dict[str, Any] = {
        **{name: getattr(trainer, name) for name in COUNTERS},
        "skipped_steps": int(trainer.skipped_steps),
        "optimizer": trainer.optimizer.state_dict(),
        "data": trainer.setup.data_digests,
        "made_with": made_with(),
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


def restore_checkpoint(trainer: Trainer, folder: Path) -> None:
    """Load a verified checkpoint into the trainer.

    Raises:
        CheckpointError: It does not belong to this recipe or these captions, or an earlier version
            wrote it.
    """
    state = load_training_state(folder)
    if "objective" in state:
        raise CheckpointError(
            f"{folder}: an earlier version of captioner began this run and this one cannot "
            "resume it; start another run with train.start_from set to this folder"
        )
    try:
        changed = [
            n for n, digest in trainer.setup.data_digests.items() if state["data"][n] != digest
        ]
        if changed:
            raise CheckpointError(
                f"{folder}: this run began with other {' and '.join(changed)} than those that the "
                "settings of data name now; resume with its own, or start another run"
            )
        _report_other_versions(folder, state["made_with"])
        load_weights(trainer.evaluated_model, folder)
        if trainer.averaged:
            trainer.model.load_state_dict(state["raw"], strict=False)
        groups = trainer.optimizer.state_dict()["param_groups"]  # settings are the recipe's
        trainer.optimizer.load_state_dict(
            {"state": state["optimizer"]["state"], "param_groups": groups}
        )
        trainer.task.load_training_state(state["task"])
        state.setdefault("lr_drops", state.get("drops"))  # its name in earlier versions
        for name in COUNTERS:
            setattr(trainer, name, state[name])
        trainer.skipped_steps.fill_(state["skipped_steps"])
    except (KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"{folder}: does not fit this recipe ({error_summary(error, max_length=300)}); resume "
            "with the run's own settings"
        ) from None


def _report_other_versions(folder: Path, before: dict[str, str]) -> None:
    """Warn of versions and threads that differ from those that wrote the checkpoint."""
    now = made_with()
    differing = [
        f"{name} {before[name]} (now {now[name]})"
        for name in before
        if name in now and name != "revision" and before[name] != now[name]
    ]
    if differing and rank() == 0:
        logger.warning(
            f"{folder}: written with {', '.join(differing)}; the run goes on, but perhaps not to "
            "the last bit as it would have there"
        )


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
