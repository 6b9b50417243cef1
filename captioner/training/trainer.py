"""A training run: epochs of steps, with validation and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from captioner.errors import CaptionerError
from captioner.log import logger
from captioner.models.model import CaptionModel
from captioner.runtime.cuda_graphs import graphs_of_search
from captioner.runtime.device import autocast
from captioner.runtime.distributed import (
    from_first_process,
    parallel,
    world_size,
)
from captioner.runtime.draws import seed_of
from captioner.training.capture import FixedShapeStep, step_kind
from captioner.training.checkpointing import save_checkpoint
from captioner.training.optimizer import AveragedModel, build_optimizer
from captioner.training.reporting import log_samples, print_validation
from captioner.training.run_log import RunLog
from captioner.training.setup import Setup
from captioner.training.step import StepOutput, TrainingLoop, training_step
from captioner.training.validation import Validation, validate, validation_decoding


class Trainer(TrainingLoop):
    """A run; `save` writes all that `restore_checkpoint` needs to go on with it.

    Attributes:
        best, figures, bad_epochs: The best validation metric, the figures of that epoch, and the
            epochs since.
        last_validation: Its log entry, which a crash may have kept from the log.
    """

    def __init__(self, setup: Setup, run: Path, device: torch.device) -> None:
        self.run = run
        config, task, optim = setup.config, setup.task, setup.config.optim
        kind = step_kind(config, device, world_size())
        optimizer = build_optimizer(task, optim, on_device=kind != "off")
        averaged = AveragedModel(task.model, optim.ema_decay) if optim.ema_decay else None
        options: dict[str, Any] = {
            "optimizer": optimizer,
            "clip_norm": optim.clip_norm,
            "autocast": autocast(device, config.train.precision),
            "device": device,
        }
        if device.type == "cuda":  # TF32 for what is computed in float32
            torch.set_float32_matmul_precision("high")
        take_step: Callable[..., StepOutput]
        if kind == "off":
            ddp = parallel(task, compress=optim.compress_gradients)
            take_step = partial(training_step, ddp, **options)
        else:
            take_step = FixedShapeStep(
                task,
                **options,
                kind=kind,
                captions=config.data.batch_size,
                longest=int(setup.dataset.captions.lengths.max()),
                compress=optim.compress_gradients,
            )
        super().__init__(setup, device, optimizer, averaged, take_step)
        self.best = -math.inf
        self.bad_epochs = 0
        self.figures: dict[str, Any] = {}
        self.last_validation: dict[str, Any] = {}
        self.warned: set[str] = set()  # signs of collapse that were reported

    @property
    def evaluated_model(self) -> CaptionModel:
        """The model that is validated and saved: the averaged one if there is one."""
        return self.averaged.model if self.averaged else self.model

    def fit(self, *, validate_start: bool = False) -> None:
        """Train until the last epoch, or until patience ends.

        Args:
            validate_start: Also validate the model that a new run begins with, and report its CIDEr
                next to that of the best one.

        Raises:
            KeyboardInterrupt: A signal came; a checkpoint was saved unless a step was half done.
            CaptionerError: The run cannot go on; a checkpoint was saved unless the gradient was not
                finite in many steps in a row.
        """
        first = self.rank == 0
        writing = closing(RunLog(self.run, resume_step=self.step)) if first else nullcontext()
        with writing as log, self.interrupts:
            if log is not None:
                log.write_validation(self.last_validation)  # unless it is there
            start = None
            if validate_start and self.step == 0:
                start = self._validate_start()
            while not self.is_finished():
                self._fit_epoch(log)
        if self._out_of_patience() and first:
            logger.info(
                f"stopped: {self.bad_epochs} epochs without a better {self.config.train.metric} "
                f"than that of epoch {self.figures.get('epoch')} (train.patience)"
            )

        after = self.figures.get("CIDEr")
        if first and start is not None and after is not None:
            logger.info(
                f"CIDEr {start:.3f} before, {after:.3f} after epoch {self.figures['epoch']}"
            )

    def _validate_start(self) -> float | None:
        """Return the CIDEr of the model as it begins; random numbers stay as they were."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            score = self._validate().figures.get("CIDEr")
        if score is not None and self.rank == 0:
            logger.info(f"before: CIDEr {score:.3f} on {len(self.setup.validation)} photos")
        return score

    def is_finished(self) -> bool:
        return self.epoch >= self.config.train.epochs or self._out_of_patience()

    def _out_of_patience(self) -> bool:
        patience = self.config.train.patience
        return bool(patience) and self.bad_epochs >= patience

    def _fit_epoch(self, log: RunLog | None) -> None:
        """Train, validate and save one epoch; after an interrupt, save what can be resumed."""
        try:
            self.train_epoch(log)
            if not from_first_process(lambda: (self.run / "last").exists()):
                self.save()  # a kill between `best` and the first `last` would leave no way on
            validation = self._validate()
            self.interrupts.release()
            self.interrupts.deferred = True  # until the checkpoint that knows of this validation
        except (KeyboardInterrupt, CaptionerError) as error:
            # While interrupts are deferred, a step is half done: keep the last checkpoint. Nor can
            # a process save alone after an error that the others do not know of.
            alone = self.processes > 1 and isinstance(error, CaptionerError)
            if not self.interrupts.deferred and not alone:
                self.save()
            raise
        self.last_validation = {"step": self.step, "epoch": self.epoch, **validation.figures}
        self.epoch, self.batch = self.epoch + 1, 0
        self._update_best(validation)
        try:
            if log is not None:  # before the checkpoint: a kill between the two loses no picture
                samples = self.config.train.samples
                self.report_unreadable(log_samples(log, self.setup, validation, self.step, samples))
        finally:
            self.save()  # a failure to draw loses no work
        if log is not None:
            self.report_unreadable(validation.unreadable)
            log.write_validation(self.last_validation)
            print_validation(self.epoch, self.step, validation, self.config, self.warned)
        self.interrupts.release()

    def _validate(self) -> Validation:
        """Validate the evaluated model, by random numbers that depend on the epoch."""
        setup, config = self.setup, self.config
        # for the cells that attention.at_test: sample draws
        torch.manual_seed(seed_of(config.train.seed, self.epoch, 0, self.rank))
        return validate(
            self.evaluated_model,
            setup.validation_sources,
            setup.validation_transform,
            setup.vocabulary,
            device=self.device,
            decoding=validation_decoding(config),
            cache=setup.validation_cache,
            decisive_source=config.train.val_source,
            graphs=graphs_of_search(self.device) if config.train.compile != "off" else None,
        )

    def _update_best(self, validation: Validation) -> None:
        """Write the `best` folder if this validation is the best so far; else count it as bad."""
        metric = validation.figures[self.config.train.metric]
        if metric > self.best:
            self.best, self.bad_epochs = metric, 0
            self.figures = {"epoch": self.epoch, **validation.figures}
            self._write("best", with_state=False)
            return
        self.bad_epochs += 1
        if self.config.optim.schedule == "plateau":
            self.lr_drops += self.bad_epochs % self.config.optim.plateau_epochs == 0

    def save(self) -> None:
        """Write the `last` folder, with all that a resumed run needs."""
        self._write("last", with_state=True)

    def _write(self, name: str, *, with_state: bool) -> None:
        from_first_process(lambda: save_checkpoint(self, self.run / name, with_state=with_state))
