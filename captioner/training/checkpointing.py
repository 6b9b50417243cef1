"""Checkpoints of a run: the model folder, its card, and all else that a resumed run needs."""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import captioner
from captioner.checkpoint import load_training_state, load_weights, save_model
from captioner.config import to_yaml
from captioner.config.settings import Config
from captioner.config.validation import data_sources
from captioner.errors import CheckpointError, error_summary
from captioner.training.validation import validation_decoding

if TYPE_CHECKING:
    from captioner.training.trainer import Trainer

# Attributes of the trainer that a checkpoint holds as they are.
COUNTERS = tuple("epoch batch step best bad_epochs lr_drops figures last_validation".split())

# Packages whose versions a model card records.
PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow")
# What model hubs read; the licence is for the owner of the data to add.
FRONT_MATTER = (
    "---",
    "library_name: captioner",
    "pipeline_tag: image-to-text",
    "tags: [image-captioning, attention, show-attend-and-tell]",
    "---",
)


def save_checkpoint(trainer: Trainer, folder: Path, *, with_state: bool) -> None:
    """Write the evaluated model as a model folder, with the training state if asked for.

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
    if trainer.averaged:  # the model file holds the averaged weights, and frozen stages are alike
        state["raw"] = {
            name: value
            for name, value in trainer.model.state_dict().items()
            if not name.startswith("encoder.backbone.") or trainer.config.encoder.trainable_from
        }
    return state


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


def model_card(
    config: Config,
    figures: dict[str, Any],
    origin: Mapping[str, str] | None = None,
) -> str:
    """Return the card: what the model was trained on and how, and its validation figures.

    Args:
        config: The recipe.
        figures: Figures of the best validation; empty before the first.
        origin: Facts by name: versions, threads, revision, and hashes of the data.
    """
    lines = [
        *FRONT_MATTER,
        "# A captioner model",
        "",
        f"{config.attention.select} attention over {config.encoder.backbone}, trained on "
        f"{_splits(config, 'train_split')}.",
        "",
        "## Figures",
        "",
    ]
    if figures:
        lines += [
            f"On {_splits(config, 'val_split')}, epoch {figures['epoch']}, beam "
            f"{validation_decoding(config).beam_size}, scored with the Python tokenizer "
            "(`captioner evaluate` gives the figures to publish):",
            "",
            "| metric | value |",
            "| --- | --- |",
            *(f"| {name} | {value:.4f} |" for name, value in figures.items() if name != "epoch"),
        ]
    else:
        lines.append("Not validated yet.")
    if origin:
        lines += ["", "## Made with", "", "| | |", "| --- | --- |"]
        lines += [f"| {name} | {value} |" for name, value in origin.items()]
    return "\n".join([*lines, "", "## Recipe", "", "```yaml", to_yaml(config).rstrip(), "```", ""])


def _splits(config: Config, key: str) -> str:
    """Name the splits of all sources: `key` is `train_split` or `val_split`."""
    splits = ((getattr(source, key), source.name) for source in data_sources(config.data))
    return " and ".join(f"split {split} of {name}" for split, name in splits if split is not None)
