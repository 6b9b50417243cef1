"""A training run in its folder: begin it, resume it, end it cleanly on a signal."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
import yaml

from captioner.captioner import Captioner
from captioner.checkpoint import (
    CHECKPOINTS,
    MANIFEST,
    clean_run_folder,
    model_folder,
    verify,
)
from captioner.config import Config, data_sources, from_yaml, to_yaml
from captioner.errors import CaptionerError, CheckpointError, ConfigError, error_summary
from captioner.evaluation.calibration import collect, fit, write_calibrator
from captioner.files import locked_folder, save_bytes
from captioner.generation.confidence import CALIBRATOR
from captioner.log import logger
from captioner.runtime.device import choose_device
from captioner.runtime.distributed import (
    FailedElsewhere,
    from_first_process,
    in_all_processes,
    processes,
    rank,
)
from captioner.training.checkpointing import restore_checkpoint
from captioner.training.metrics_file import logged_progress
from captioner.training.setup import Setup, prepare
from captioner.training.trainer import Trainer

LAUNCH = ".launch"  # in a run folder: by which call of torchrun it was made
DAMAGED = "last.damaged"  # in a run folder: a checkpoint `last` that could not be resumed from


def train(config: Config, *, resume: bool = False) -> Path:
    """Train by a recipe and return the folder of the best model.

    A resumed run goes through the same steps as one that was never interrupted, to the last bit
    (on the same CPU, with the same number of processes and threads; a GPU adds up in any order).

    Under torchrun, its processes share each batch. One that torchrun has started again goes on with
    the run by itself.

    Args:
        config: The recipe.
        resume: Go on with the run in `train.output`.

    Raises:
        CaptionerError: Something cannot be used; one sentence says what.
        KeyboardInterrupt: On SIGINT and SIGTERM, after a checkpoint was saved.
    """
    run = Path(config.train.output)
    with processes(config.train.device), contextlib.ExitStack() as stack:
        device = choose_device(config.train.device)
        resumed, config = from_first_process(lambda: _begin(config, run, resume, stack))
        if resumed:
            trainer = _resumed_trainer(config, run, device)
        else:
            trainer = _trainer(config, run, device, None)
        from_first_process(lambda: save_bytes(to_yaml(config).encode(), run / "config.yaml"))
        trainer.fit()
        if rank() == 0:
            calibrate(run / "best", trainer.setup, device)
        return run / "best"


def _begin(
    config: Config, run: Path, resume: bool, stack: contextlib.ExitStack
) -> tuple[bool, Config]:
    """Lock the run folder until the stack ends.

    Returns:
        Whether to resume the run in it, and the settings to go on with.
    """
    if not config.train.output:  # else the run would lie in the current folder
        raise ConfigError("train.output: is empty; name a folder for the run")
    resume = resume or _started_again(run)
    if resume:
        config = _recipe_to_resume(run, config)
    elif holds_a_run(run):
        raise ConfigError(
            f"train.output: {run} already holds a run; add --resume to go on with it, or name "
            "another folder"
        )
    elif any(os.path.exists(run / name) for name in (MANIFEST, "best")):
        raise ConfigError(
            f"train.output: {run} holds a model, which a run would overwrite; name another folder"
        )
    stack.enter_context(_locked(run))
    clean_run_folder(run)
    if launch := _launch():
        save_bytes(launch.encode(), run / LAUNCH)
    return resume, config


def _launch() -> str:
    """Return an identifier of this call of torchrun; an empty one in a single process."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return f"process {os.getppid()}" if name == "none" else name  # torchrun's default


def _started_again(run: Path) -> bool:
    """Return whether torchrun has lost a process of this folder's run and started all again.

    It has not if it started processes again that failed because the folder holds another run.
    """
    launch, attempt = run / LAUNCH, int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return bool(
        attempt and holds_a_run(run) and launch.is_file() and launch.read_text() == _launch()
    )


def holds_a_run(run: Path) -> bool:
    """Return whether there is a checkpoint to resume from, which may be damaged."""
    return any(os.path.exists(run / name) for name in CHECKPOINTS)


def _trainer(config: Config, run: Path, device: torch.device, checkpoint: Path | None) -> Trainer:
    """Return the trainer of the run, at its beginning or at a checkpoint.

    Processes agree after each part, before any of them waits for the others' tensors.
    """
    if checkpoint is not None:
        from_first_process(lambda: verify(checkpoint, needs_state=True))

    def prepared() -> Setup:
        start_from = checkpoint
        if start_from is None and config.train.start_from is not None:
            start_from = model_folder(config.train.start_from)
            verify(start_from)
        return prepare(config, device, start_from, resume=checkpoint is not None)

    trainer = Trainer(in_all_processes(prepared), run, device)
    if checkpoint is not None:
        in_all_processes(lambda: restore_checkpoint(trainer, checkpoint))
    return trainer


def _resumed_trainer(config: Config, run: Path, device: torch.device) -> Trainer:
    """Return the trainer at the run's newest checkpoint that is whole: `last`, else `previous`.

    Damage that a manifest agrees with shows only when a checkpoint is loaded.
    """
    refusals: list[str] = []  # errors would keep the refused models in memory
    for name in CHECKPOINTS:
        try:
            trainer = _trainer(config, run, device, run / name)
            break
        except CheckpointError as error:
            refusals.append(str(error))
        except FailedElsewhere as ended:
            if not isinstance(ended.error, CheckpointError):
                raise
            refusals.append(str(ended.error))
    else:
        last, previous = refusals
        message = f"{run}: neither last nor previous can be resumed from ({last}; {previous})"
        if previous.replace(str(run / "previous"), str(run / "last")) == last:
            message = last  # the checkpoints are not at fault, but the data, for example
        refusal = CheckpointError(message)
        raise refusal if rank() == 0 else FailedElsewhere(refusal)
    if refusals:
        from_first_process(lambda: _fall_back(trainer, refusals[0]))
    return trainer


def _fall_back(trainer: Trainer, refusal: str) -> None:
    """Set `last` aside, which was refused, and say how much work is done again from `previous`.

    Left in its place it would become `previous` with the next checkpoint, instead of a whole one.
    """
    run, aside = trainer.run, trainer.run / DAMAGED
    kept = ""
    try:
        if os.path.lexists(run / "last"):
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(run / "last", aside)
            kept = f"; the damaged one is {aside} now"
    except OSError as error:
        raise CheckpointError(
            f"{refusal}; it cannot be set aside as {aside} ({error.strerror or error})"
        ) from None
    step, epoch = logged_progress(run)
    again, lost = "", step - trainer.step
    if lost > 0:
        steps = f"{lost} steps are" if lost > 1 else "1 step is"
        again = f", so that {steps} done again (the log goes to step {step} in epoch {epoch + 1})"
    logger.warning(
        f"{refusal}; going on from {run / 'previous'} at step {trainer.step} in epoch "
        f"{trainer.epoch + 1}{again}{kept}"
    )


def calibrate(best: Path, setup: Setup, device: torch.device) -> None:
    """Fit the calibrator of the best model on the validation images, and write it into its folder.

    A failure is reported and loses nothing: the run is done.
    """
    least = setup.config.train.calibrate_from
    if not least or len(setup.validation) < least or (best / CALIBRATOR).exists():
        return
    try:
        captioner = Captioner.from_pretrained(best, device=str(device))
        calibrator, report = fit(
            [
                collect(captioner, name, members, setup.dataset.images)
                for name, members in setup.validation_sources.items()
            ]
        )
        write_calibrator(best, calibrator)
    except (CaptionerError, OSError, RuntimeError) as error:
        logger.warning(f"{best}: without a calibrator ({error_summary(error)})")
        return
    everything = report["all"]
    logger.info(
        f"calibrator: area under the curve {everything['auc']:.3f}, expected calibration error "
        f"{everything['ece']:.3f}, by cross-fitting on {everything['num_images']} photos"
    )


@contextlib.contextmanager
def _locked(run: Path) -> Iterator[None]:
    """Keep other processes from training in the folder, which is made where it is missing.

    A new folder in which a run that fails has written nothing is removed.
    """
    is_new = not os.path.exists(run)
    with locked_folder(run, name=f"train.output: {run}", remedy="name another folder"):
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):  # a system may keep the file that is locked
                if is_new and os.listdir(run) == [".lock"]:
                    (run / ".lock").unlink()
                    run.rmdir()
            raise


def _recipe_to_resume(run: Path, config: Config) -> Config:
    """Return the settings to resume a run with.

    They are those of `config`, but for `hard.reward`, which stays as it was: the recipe of a run of
    an earlier version does not name it, and the default was the log-probability then.

    Raises:
        CaptionerError: There is no run, or it began with settings that cannot change.
    """
    try:
        text = (run / "config.yaml").read_text(encoding="utf-8")
        if not text.strip():  # or every setting would be the default
            raise ConfigError("it is empty")
        before = from_yaml(Config, text)
        names_reward = "reward" in ((yaml.safe_load(text) or {}).get("hard") or {})
    except OSError:
        raise CheckpointError(f"{run}: there is no run to resume; leave --resume out") from None
    except (ConfigError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{run / 'config.yaml'}: edited or damaged ({error}); undo the edit, or write the "
            "recipe that the run began with there again"
        ) from None
    if not holds_a_run(run):
        raise CheckpointError(f"{run}: no checkpoint to resume from; leave --resume out")
    reward = before.hard.reward if names_reward else "log_prob"
    if config.attention.select == "hard" and reward != config.hard.reward:
        logger.info(f"hard.reward: stays {reward}, as when {run} began")
        config = replace(config, hard=replace(config.hard, reward=reward))
    fixed, changed = changed_settings(before, config)
    if fixed:
        raise ConfigError(
            f"{', '.join(fixed)}: not the same as when {run} began; resume with its own settings "
            f"(--config {run / 'config.yaml'}), or start another run"
        )
    if changed:
        logger.info(f"{', '.join(changed)}: changed since {run} began")
    return config


def changed_settings(old: Config, new: Config) -> tuple[list[str], list[str]]:
    """Return the settings that differ between a run and the recipe to resume it with.

    Returns:
        Keys that cannot change, because data and model would be others; and keys that can, but
        make it another run than one that was never interrupted.
    """
    ignored = {f"train.{key}" for key in ("output", "device", "log_every", "samples", "start_from")}
    ignored |= {"train.start_with", "train.checkpoint_every", "train.calibrate_from"}
    ignored |= {"data.workers", "data.check_photos"}
    ignored.add("hard.reward")  # a resumed run keeps the reward that it began with
    # where the data is; the checkpoint tells whether it is the same data
    ignored |= {"data.root", "data.file", "data.coco_splits"}
    if bool(old.data.cache) == bool(new.data.cache):
        ignored.add("data.cache")
    old, new = _without_places(old), _without_places(new)
    differing = [
        f"{section}.{key}"
        for section in vars(new)
        for key, value in vars(getattr(new, section)).items()
        if value != getattr(getattr(old, section), key) and f"{section}.{key}" not in ignored
    ]
    allowed = [
        key
        for key in differing
        if key.split(".")[0]
        in ("loss", "text", "hard", "self_critical", "optim", "train", "decoding")
        and key not in ("optim.name", "train.seed", "hard.baseline")
        and not (key == "optim.ema_decay" and 0 in (old.optim.ema_decay, new.optim.ema_decay))
        and not (
            key in ("loss.visual_concepts", "text.file")
            and _learns_word_concepts(old) != _learns_word_concepts(new)
        )
    ]
    return [key for key in differing if key not in allowed], allowed


def _without_places(config: Config) -> Config:
    """Return the settings without where the sources of the data lie."""
    if config.data.sources is None:
        return config
    sources = data_sources(config.data)  # with their names, which --data.root adds
    placeless = tuple(replace(s, root="", file=None, coco_splits=None) for s in sources)
    return replace(config, data=replace(config.data, sources=placeless))


def _learns_word_concepts(config: Config) -> bool:
    """Return whether a run learns a table of word concepts (training/word_concepts.py)."""
    return bool(config.loss.visual_concepts or config.text.file is not None)
