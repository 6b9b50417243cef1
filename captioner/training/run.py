"""A training run in its folder: begin it, resume it, end it cleanly on a signal."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from captioner.captioner import Captioner
from captioner.checkpoint import CHECKPOINTS, CONFIG, MANIFEST, load_model, verify
from captioner.checkpoint_writer import add_files
from captioner.config import from_yaml, to_yaml
from captioner.config.settings import Config, SourceConfig
from captioner.config.validation import data_sources
from captioner.errors import CaptionerError, CheckpointError, ConfigError, error_summary
from captioner.evaluation import calibration
from captioner.files import TEMPORARY, save_bytes
from captioner.generation.confidence import CALIBRATOR
from captioner.log import logger, progress_bar
from captioner.models.products import onednn_products
from captioner.runtime.cuda_graphs import graphs_of_search
from captioner.runtime.device import choose_device, keep_freed_memory, onednn_is_faster
from captioner.runtime.distributed import rank
from captioner.runtime.processes import from_first_process, in_all_processes, processes
from captioner.storage import locked_folder
from captioner.training.setup import Setup, prepare
from captioner.training.trainer import Trainer
from captioner.training.validation import validate, validation_decoding

LENGTH_PENALTIES = (0.0, 0.4, 0.8, 1.2)
# Where data lies and how it is read. It may change, because the captions that were read are
# compared (`Trainer.restore`).
HOW_READ = ("root", "file", "coco_splits", "format", "image_column", "caption_column")
MAY_CHANGE = {f"data.{key}" for key in (*HOW_READ, "val_share", "strip_markers", "workers")}
# Sections and settings that a resumed run must have as it began, or its data, model or optimizer
# would be others.
FIXED = {"preprocess", "encoder", "attention", "decoder", "data", "optim.name", "optim.ema_decay"}
FIXED |= {"hard.baseline", "train.seed", "train.metric", "train.val_source"}


def train(config: Config, *, resume: bool = False, validate_start: bool = False) -> Path:
    """Train by a recipe and return the folder of the best model.

    A resumed run goes through the same steps as one that was never interrupted, to the last bit
    (on the same CPU, with the same number of processes and threads; a GPU adds up in any order).
    Under torchrun, processes share each batch; one that it has started again resumes by itself.
    SIGINT and SIGTERM end it by a KeyboardInterrupt, after a checkpoint was saved.

    Args:
        resume: Go on with the run in `train.output`.
        validate_start: As of `Trainer.fit`.
    """
    run = Path(config.train.output)
    best = run / "best"
    with processes(config.train.device), contextlib.ExitStack() as stack:
        device = choose_device(config.train.device)
        if device.type == "cpu":
            keep_freed_memory()
            if onednn_is_faster():
                stack.enter_context(onednn_products())
        checkpoint, reward = from_first_process(lambda: _begin(config, run, resume, stack))
        config = replace(config, hard=replace(config.hard, reward=reward))
        # Processes agree after each part, before any of them waits for the others' tensors.
        setup = in_all_processes(lambda: prepare(config, device, checkpoint))
        trainer = Trainer(setup, run, device)
        if checkpoint is not None:
            in_all_processes(lambda: trainer.restore(checkpoint))
        if not trainer.has_ended:  # else the settings of what was trained stay there
            from_first_process(lambda: save_bytes(to_yaml(config).encode(), run / "config.yaml"))
        trainer.fit(validate_start=validate_start)
        choose_length_penalty(best, setup, device)
        if rank() == 0:
            calibrate(best, setup, device)
    return best


def _begin(
    config: Config, run: Path, resume: bool, stack: contextlib.ExitStack
) -> tuple[Path | None, Any]:
    """Lock the run folder until the stack ends; return what to resume from, and `hard.reward`."""
    is_restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"  # by torchrun
    resume = resume or (is_restarted and holds_a_run(run))
    if resume:
        config = _checked_settings(run, config)
    elif any(os.path.exists(run / name) for name in (*CHECKPOINTS, "best", MANIFEST)):
        raise ConfigError(
            f"train.output: {run} already holds a run or a model; add --resume to go on with the "
            "run, or name another folder"
        )
    lock = locked_folder(run, name=f"train.output: {run}", remedy="name another folder")
    stack.enter_context(lock)
    clean_run_folder(run)
    # Not all settings: each process has its own places of data.
    return _whole_checkpoint(run) if resume else None, config.hard.reward


def clean_run_folder(run: Path) -> None:
    """Remove what a killed process left in a run folder, which the caller has locked."""
    for file in run.glob(TEMPORARY):
        file.unlink()
    for name in ("best", *CHECKPOINTS):
        shutil.rmtree(run / f".{name}.writing", ignore_errors=True)
        aside = run / f".{name}.old"
        if aside.is_dir() and not (run / name).exists():  # killed before its successor was there
            os.replace(aside, run / name)
        shutil.rmtree(aside, ignore_errors=True)


def holds_a_run(run: Path) -> bool:
    """Return whether there is a checkpoint to resume from, which may be damaged."""
    return any(os.path.exists(run / name) for name in CHECKPOINTS)


def _whole_checkpoint(run: Path) -> Path:
    """Return the newest checkpoint of a run that is whole: `last`, else `previous`."""
    damages: list[str] = []
    for folder in (run / name for name in CHECKPOINTS):
        try:
            verify(folder, needs_state=True)
        except CheckpointError as error:
            damages.append(str(error))
            continue
        if damages:
            shutil.rmtree(run / "last", ignore_errors=True)  # or it would become `previous`
            logger.warning(f"{damages[0]}; going on from {folder}, some steps earlier")
        return folder
    reasons = "; ".join(damages)
    raise CheckpointError(f"{run}: neither last nor previous can be resumed from ({reasons})")


def choose_length_penalty(best: Path, setup: Setup, device: torch.device) -> None:
    """Write the length penalty with the best validation metric into the best model's settings.

    Every process takes part in the searches. A recipe with a penalty keeps it, and few validation
    photos (fewer than the calibrator needs) choose none.
    """
    train = setup.config.train
    if len(setup.validation.images) < max(1, train.calibrate_from):
        return
    model, config, vocabulary = load_model(best, device)
    if config.decoding.length_penalty is not None:
        return
    scores = {}
    graphs = graphs_of_search(device) if train.compile != "off" else None
    for penalty in progress_bar(LENGTH_PENALTIES, desc="length penalty"):
        decoding = replace(validation_decoding(setup.config), length_penalty=penalty)
        found = validate(
            model, vocabulary, setup.validation, decoding=decoding, device=device, graphs=graphs
        )
        scores[penalty] = found.figures[train.metric]
    chosen = max(scores, key=scores.__getitem__)
    config = replace(config, decoding=replace(config.decoding, length_penalty=chosen))
    from_first_process(lambda: add_files(best, {CONFIG: to_yaml(config).encode()}))
    tried = ", ".join(f"{penalty:g}: {score:.3f}" for penalty, score in scores.items())
    logger.info(
        f"decoding.length_penalty {chosen:g} has the best {train.metric} on validation ({tried})"
    )


def calibrate(best: Path, setup: Setup, device: torch.device) -> None:
    """Fit the best model's calibrator on the validation images, and write it into its folder."""
    least, count = setup.config.train.calibrate_from, len(setup.validation.images)
    if not least or (best / CALIBRATOR).exists():
        return
    if count < least:
        logger.info(
            f"captions of this model have no confidence: {count} validation photos are too few to "
            f"fit one (train.calibrate_from {least}); captioner calibrate fits it on other photos"
        )
        return
    logger.info(f"fitting the calibrator of confidence on {count} photos, and on training photos")
    try:
        captioner = Captioner.from_pretrained(best, device=str(device))
        sources = list(setup.validation.sources.items())
        calibrator, _ = calibration.calibrate(captioner, sources, setup.dataset.images)
        add_files(best, calibrator.to_files())
    except (CaptionerError, OSError, RuntimeError) as error:
        logger.warning(f"{best}: without a calibrator ({error_summary(error)})")


def _checked_settings(run: Path, config: Config) -> Config:
    """Return the settings; refuse to resume what is no run, or one that began with others."""
    if not holds_a_run(run):
        raise CheckpointError(f"{run}: there is no run to resume; leave --resume out")
    path = run / "config.yaml"
    text = path.read_text(encoding="utf-8")
    before = from_yaml(Config, text)
    if "\n  reward: " not in text:  # of an earlier version
        before, config = (
            replace(c, hard=replace(c.hard, reward="log_prob")) for c in (before, config)
        )
    fixed, changed = changed_settings(before, config)
    if fixed:
        raise ConfigError(
            f"{', '.join(fixed)}: not the same as when {run} began; resume with its own settings "
            f"(--config {path}), or start another run"
        )
    if changed:
        logger.info(f"{', '.join(changed)}: changed since {run} began")
    return config


def changed_settings(old: Config, new: Config) -> tuple[list[str], list[str]]:
    """Return the settings that differ between a run and the recipe to resume it with.

    Where the cache and the sources of the data lie is no difference.

    Returns:
        Keys that cannot change, because data and model would be others; and keys that can, but may
        make it another run than one that was never interrupted.
    """

    def settings(config: Config) -> dict[str, Any]:
        data = replace(config.data, cache=None if config.data.cache is None else "")
        if data.sources is not None:
            sources = data_sources(config.data)  # with their names, which --data.root adds
            nowhere = {key: getattr(SourceConfig, key) for key in HOW_READ}
            data = replace(data, sources=tuple(replace(s, **nowhere) for s in sources))
        sections = vars(replace(config, data=data)).items()
        return {f"{name}.{key}": v for name, keys in sections for key, v in vars(keys).items()}

    before, after = settings(old), settings(new)
    differing = [key for key in after if before[key] != after[key] and key not in MAY_CHANGE]
    fixed = [key for key in differing if {key, key.split(".")[0]} & FIXED]
    return fixed, [key for key in differing if key not in fixed]
