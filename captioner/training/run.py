"""A training run in its folder: begin it, resume it, end it cleanly on a signal."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from captioner.checkpoint import (
    CHECKPOINTS,
    MANIFEST,
    model_folder,
    newest_checkpoint,
    verify,
)
from captioner.config import Config, from_yaml, to_yaml
from captioner.errors import CheckpointError, ConfigError
from captioner.files import locked, save_bytes
from captioner.runtime.device import choose_device
from captioner.training.setup import prepare
from captioner.training.trainer import Trainer


def train(config: Config, *, resume: bool = False) -> Path:
    """Train by a recipe and return the folder of the best model.

    A resumed run goes through the same steps as one that was never interrupted, to the last bit
    (on the same CPU, with the same number of threads; a GPU adds up in any order).

    Args:
        config: The recipe.
        resume: Go on with the run in `train.output`.

    Raises:
        CaptionerError: Something cannot be used; one sentence says what.
        KeyboardInterrupt: On SIGINT and SIGTERM, after a checkpoint was saved.
    """
    run = Path(config.train.output)
    checkpoint = _checkpoint_to_resume(run, config) if resume else None
    if not resume and holds_a_run(run):
        raise ConfigError(
            f"train.output: {run} already holds a run; add --resume to go on with it, or name "
            "another folder"
        )
    if not resume and any((run / name).exists() for name in (MANIFEST, "best")):
        raise ConfigError(
            f"train.output: {run} holds a model, which a run would overwrite; name another folder"
        )
    device = choose_device(config.train.device)
    with _locked(run):
        return _train(config, run, device, checkpoint)


def holds_a_run(run: Path) -> bool:
    """Whether there is a checkpoint to resume from; it may turn out to be damaged."""
    return any(os.path.exists(run / name) for name in CHECKPOINTS)


def _train(config: Config, run: Path, device: torch.device, checkpoint: Path | None) -> Path:
    start_from = checkpoint
    if start_from is None and config.train.start_from is not None:
        start_from = model_folder(config.train.start_from)
        verify(start_from)
    trainer = Trainer(prepare(config, device, start_from), run, device)
    if checkpoint:
        trainer.restore(checkpoint)
    save_bytes(to_yaml(config).encode(), run / "config.yaml")
    trainer.fit()
    return run / "best"


@contextlib.contextmanager
def _locked(run: Path) -> Iterator[None]:
    """Keep other processes from training in the folder, which is made where it is missing.

    Raises:
        ConfigError: it cannot be a run folder, or another process is training in it.
    """
    with contextlib.ExitStack() as stack:
        try:
            run.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(run / ".lock", wait=False))
        except BlockingIOError:
            raise ConfigError(
                f"train.output: a run is going on in {run}; wait for its end, or name another "
                "folder"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"train.output: {run} cannot be a run folder ({error.strerror}); name another "
                "folder"
            ) from None
        yield


def _checkpoint_to_resume(run: Path, config: Config) -> Path:
    try:
        text = (run / "config.yaml").read_text(encoding="utf-8")
        if not text.strip():  # or every setting would be the default
            raise ConfigError("it is empty")
        before = from_yaml(Config, text)
    except OSError:
        raise CheckpointError(f"{run}: there is no run to resume; leave --resume out") from None
    except (ConfigError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{run / 'config.yaml'}: damaged ({error}); write the recipe that the run began with "
            "there again"
        ) from None
    fixed, changed = changes(before, config)
    if fixed:
        raise ConfigError(
            f"{', '.join(fixed)}: not the same as when {run} began; resume with its own settings "
            f"(--config {run / 'config.yaml'}), or start another run"
        )
    if changed:
        print(f"{', '.join(changed)}: changed since {run} began", file=sys.stderr)
    return newest_checkpoint(run)


def changes(old: Config, new: Config) -> tuple[list[str], list[str]]:
    """Settings that differ between a run and the recipe to resume it with.

    Returns those that cannot change, because data and model would be others, and those that can,
    but make it another run than one that was never interrupted.
    """
    silent = {f"train.{key}" for key in ("output", "device", "log_every", "samples", "start_from")}
    silent |= {"train.checkpoint_every", "data.workers"}
    # where the data lies; that it is the same data, the checkpoint knows
    silent |= {"data.root", "data.file", "data.coco_splits"}
    if bool(old.data.cache) == bool(new.data.cache):
        silent.add("data.cache")
    differing = [
        f"{section}.{key}"
        for section in vars(new)
        for key, value in vars(getattr(new, section)).items()
        if value != getattr(getattr(old, section), key) and f"{section}.{key}" not in silent
    ]
    allowed = [
        key
        for key in differing
        if key.split(".")[0]
        in ("loss", "text", "hard", "self_critical", "optim", "train", "decoding")
        and key not in ("optim.name", "train.seed", "hard.baseline")
        and not (key == "optim.ema_decay" and 0 in (old.optim.ema_decay, new.optim.ema_decay))
        and not (key in ("loss.visual_concepts", "text.file") and _concepts(old) != _concepts(new))
    ]
    return [key for key in differing if key not in allowed], allowed


def _concepts(config: Config) -> bool:
    """Whether a run learns a table of words beside the model (training/concepts.py)."""
    return bool(config.loss.visual_concepts or config.text.file is not None)
