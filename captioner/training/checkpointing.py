"""Checkpoints of a run: the model folder and everything else that a resumed run needs."""

from __future__ import annotations

import functools
import platform
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import captioner
from captioner.checkpoint import load_training_state, load_weights, save_model
from captioner.errors import CheckpointError, error_summary
from captioner.training.model_card import model_card

if TYPE_CHECKING:
    from captioner.training.trainer import Trainer

# Attributes of the trainer that a checkpoint holds as they are.
COUNTERS = tuple("epoch batch step best bad_epochs lr_drops figures last_validation".split())

# Packages whose versions a model card records.
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
    try:
        changed = [
            n for n, digest in trainer.setup.data_digests.items() if state["data"][n] != digest
        ]
        if changed:
            raise CheckpointError(
                f"{folder}: this run began with other {' and '.join(changed)} than those that the "
                "settings of data name now; resume with its own, or start another run"
            )
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
            f"{folder}: does not fit this recipe or this version of captioner "
            f"({error_summary(error, max_length=300)}); resume with the run's own settings, or "
            "start another run with train.start_from set to this folder"
        ) from None


@functools.cache
def made_with() -> dict[str, str]:
    """Return the versions and threads that a model is trained with, for its card."""
    return {
        "captioner": captioner.__version__,
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
        "threads": str(torch.get_num_threads()),
    }
