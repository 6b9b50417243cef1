"""A training run's epochs: steps, validation, checkpoints."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from captioner.data.dataset import load_batches
from captioner.errors import CaptionerError
from captioner.evaluation.bias import bias_counts
from captioner.log import logger, progress_bar
from captioner.models.model import CaptionModel
from captioner.runtime.cores import available_cores
from captioner.runtime.distributed import from_first_process
from captioner.runtime.draws import seed_of
from captioner.training.checkpointing import save_checkpoint
from captioner.training.reporting import log_samples, print_validation
from captioner.training.run_log import RunLog
from captioner.training.setup import Setup
from captioner.training.step import StepLoop
from captioner.training.validation import Validation, validate


class Trainer(StepLoop):
    """State of a run: what `save` writes is all that `restore_checkpoint` needs."""

    def __init__(self, setup: Setup, run: Path, device: torch.device) -> None:
        super().__init__(setup, run, device)
        self.best = -math.inf
        self.bad_epochs = 0  # since the best
        self.figures: dict[str, Any] = {}  # of the best validation
        self.last_validation: dict[str, Any] = {}  # its log line, so that no crash can lose it

    def fit(self) -> None:
        """Train until the last epoch, or until patience ends.

        Raises:
            KeyboardInterrupt: A signal came; a checkpoint was saved unless a step was half done.
            CaptionerError: The run cannot go on; a checkpoint was saved unless the gradient was not
                finite in many steps in a row.
        """
        run_log: AbstractContextManager[RunLog | None] = nullcontext()
        if self.rank == 0:
            run_log = closing(RunLog(self.run, resume_step=self.step))
        with run_log as log:
            if log is not None:
                log.write_validation(self.last_validation)  # unless it is there
            with self.interrupts:
                while self.epoch < self.config.train.epochs and not self._out_of_patience():
                    self._fit_epoch(log)
        if self._out_of_patience() and self.rank == 0:
            logger.info(
                f"stopped: {self.bad_epochs} epochs without a better {self.config.train.metric} "
                f"than that of epoch {self.figures.get('epoch')} (train.patience)"
            )

    def _fit_epoch(self, log: RunLog | None) -> None:
        """Train, validate and save one epoch; after an interrupt, save what can be resumed."""
        try:
            self._take_steps(log)
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
                self.report_unreadable(
                    log_samples(log, self.setup, validation, self.epoch, self.step, samples)
                )
        finally:
            self.save()  # a failure to draw loses no work
        if log is not None:
            self.report_unreadable(validation.unreadable)
            log.write_validation(self.last_validation)
            attends = self.config.decoder.kind != "mean"
            print_validation(self.epoch, validation, attends=attends)
        self.interrupts.release()

    def _take_steps(self, log: RunLog | None) -> None:
        """Load the batches of the epoch that are not done yet, and take its steps."""
        config, setup = self.config, self.setup
        num_batches = len(setup.batches.epoch(self.epoch))
        loader = load_batches(
            setup.dataset,
            setup.batches,
            self.epoch,
            first=self.batch,
            share=(self.rank, self.processes),
            workers=min(config.data.workers, available_cores()),
            pin_memory=self.device.type == "cuda",
        )
        bar = progress_bar(
            desc=f"epoch {self.epoch + 1}/{config.train.epochs}",
            total=num_batches,
            initial=self.batch,
            unit="batch",
            disable=self.rank > 0,
        )
        with bar:
            self.train_epoch(loader, num_batches, bar, log)

    @property
    def evaluated_model(self) -> CaptionModel:
        """The model that is validated and saved: the averaged one if there is one."""
        return self.averaged.model if self.averaged else self.model

    def _validate(self) -> Validation:
        """Validate the evaluated model, by random numbers that depend on the epoch."""
        setup, config = self.setup, self.config
        # for the cells that attention.at_test: sample draws
        torch.manual_seed(seed_of(config.train.seed, self.epoch, 0, self.rank))
        return validate(
            self.evaluated_model,
            setup.validation,
            setup.validation_transform,
            setup.vocabulary,
            device=self.device,
            decoding=replace(config.decoding, beam_size=config.train.val_beam_size),
            cache=setup.validation_cache,
            sources=setup.validation_sources,
            decisive_source=config.train.val_source,
        )

    def _update_best(self, validation: Validation) -> None:
        """Write the `best` folder if this validation is the best so far; else count it as bad."""
        metric = validation.figures[self.config.train.metric]
        if metric > self.best:
            self.best, self.bad_epochs = metric, 0
            self.figures = {"epoch": self.epoch, **validation.figures}
            references = {image.image_id: image.captions for image in self.setup.validation}
            bias = bias_counts(validation.captions, references)  # empty except in process 0
            self._write("best", with_state=False, bias=bias)
            return
        self.bad_epochs += 1
        if self.config.optim.schedule == "plateau":
            self.drops += self.bad_epochs % self.config.optim.plateau_epochs == 0

    def _out_of_patience(self) -> bool:
        patience = self.config.train.patience
        return bool(patience) and self.bad_epochs >= patience

    def save(self) -> None:
        """Write the `last` folder, with all that a resumed run needs."""
        self._write("last", with_state=True)

    def _write(self, name: str, **options: Any) -> None:
        from_first_process(lambda: save_checkpoint(self, self.run / name, **options))
