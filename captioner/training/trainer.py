"""The training loop: epochs of steps, validation, checkpoints."""

from __future__ import annotations

import io
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from captioner.data.batch import Batch
from captioner.data.dataset import load_batches
from captioner.errors import CaptionerError
from captioner.evaluation.bias import bias_counts
from captioner.files import save_bytes
from captioner.models.build import CaptionModel
from captioner.runtime.device import autocast
from captioner.runtime.distributed import (
    from_first_process,
    parallel,
    rank,
    sum_over_processes,
    world_size,
)
from captioner.runtime.draws import seed_of
from captioner.training.checkpointing import restore_checkpoint, save_checkpoint
from captioner.training.diagnostics import attention_statistics
from captioner.training.interrupts import DeferredInterrupts
from captioner.training.optimizer import build_optimizer
from captioner.training.reporting import log_samples, print_validation
from captioner.training.run_log import RunLog
from captioner.training.setup import Setup
from captioner.training.step import (
    AveragedModel,
    StepOutput,
    learning_rate_factor,
    training_step,
)
from captioner.training.task import logged_metrics
from captioner.training.validation import Validation, validate

MAX_SKIPPED_STEPS = 10  # in a row, whose gradients are not finite; then the run stops


class Trainer:
    """State of a run: what `save` writes is all that `restore` needs.

    Args:
        setup: Data, model and task of the run.
        run: Run folder.
        device: Where the task is.
    """

    def __init__(self, setup: Setup, run: Path, device: torch.device) -> None:
        self.setup, self.run, self.device = setup, run, device
        self.config = setup.config
        self.task = setup.task
        self.model = setup.task.model
        self.parallel = parallel(setup.task, compress=self.config.optim.compress_gradients)
        self.averaged: AveragedModel | None = None
        if self.config.optim.ema_decay:
            self.averaged = AveragedModel(self.model, self.config.optim.ema_decay)
        self.optimizer = build_optimizer(self.task, self.config.optim)
        self.autocast = autocast(device, self.config.train.precision)
        self.interrupts = DeferredInterrupts()
        self.epoch = 0
        self.batch = 0  # batches of this epoch that are done
        self.step = 0  # optimizer steps
        self.skipped_steps = 0  # in a row
        self.best = -math.inf
        self.bad_epochs = 0  # since the best
        self.drops = 0  # of the plateau schedule
        self.figures: dict[str, Any] = {}  # of the best validation
        self.last_validation: dict[str, Any] = {}  # its log line, so that no crash can lose it
        self.unreadable = set(setup.reported_unreadable)

    # --- the loop ---------------------------------------------------------------------------------

    def fit(self) -> None:
        """Train until the last epoch, or until patience ends.

        Raises:
            KeyboardInterrupt: A signal came; a checkpoint was saved unless a step was half done.
            CaptionerError: The run cannot go on; a checkpoint was saved unless the gradient was not
                finite in many steps in a row.
        """
        with self._log() as log:
            if log is not None:
                log.write_validation(self.last_validation)  # unless it is there
            with self.interrupts:
                while self.epoch < self.config.train.epochs and not self._out_of_patience():
                    self._fit_epoch(log)
        if self._out_of_patience() and rank() == 0:
            print(
                f"stopped: {self.bad_epochs} epochs without a better {self.config.train.metric} "
                f"than that of epoch {self.figures.get('epoch')} (train.patience)",
                file=sys.stderr,
            )

    def _log(self) -> AbstractContextManager[RunLog | None]:
        return RunLog(self.run, resume_step=self.step) if rank() == 0 else nullcontext()

    def _fit_epoch(self, log: RunLog | None) -> None:
        try:
            self._train_epoch(log)
            if not from_first_process(lambda: (self.run / "last").exists()):
                self.save()  # a kill between `best` and the first `last` would leave no way on
            validation = self._validate()
            self.interrupts.release()
            self.interrupts.defer()  # until the checkpoint that knows of this validation
        except (KeyboardInterrupt, CaptionerError) as error:
            # While deferred, a step is half done: keep the last one. And an error of one process
            # is not known to the others, without which it cannot save.
            alone = world_size() > 1 and isinstance(error, CaptionerError)
            if not self.interrupts.deferred and not alone:
                self.save()
            raise
        better = validation.figures[self.config.train.metric] > self.best
        self._update_best(validation, better)
        self.epoch, self.batch = self.epoch + 1, 0
        self.last_validation = {"step": self.step, "epoch": self.epoch - 1, **validation.figures}
        if better:
            references = {image.image_id: image.captions for image in self.setup.validation}
            bias = bias_counts(validation.captions, references)  # of no caption but in process 0
            self._write("best", with_state=False, bias=bias)
        self.save()
        if log is not None:
            self._report(log, validation)  # after the save: a failure here loses no work
        self.interrupts.release()

    def _train_epoch(self, log: RunLog | None) -> None:
        config = self.config
        num_batches = len(self.setup.batches.epoch(self.epoch))
        self.task.train()
        bar = tqdm(
            desc=f"epoch {self.epoch + 1}/{config.train.epochs}",
            total=num_batches,
            initial=self.batch,
            unit="batch",
            disable=True if rank() else None,
        )
        first_step = saved_step = self.step
        started = time.perf_counter()
        waiting = 0.0
        self.interrupts.defer()  # also while batches are fetched: a worker would not survive it
        with bar:
            micro_batches = self._micro_batches(num_batches)
            while True:
                asked = time.perf_counter()
                try:
                    batches = next(micro_batches, None)
                except CaptionerError:
                    self.interrupts.deferred = False  # no step is half done: it can be saved
                    raise
                waiting += time.perf_counter() - asked
                if batches is None:
                    break
                self.batch += len(batches)
                bar.update(len(batches))
                # the first step of a run too, or a short one would show no loss
                logs = self.step == 0 or (self.step + 1) % config.train.log_every == 0
                sizes = sum_over_processes(list(map(len, batches)))
                readable = [batch for batch, size in zip(batches, sizes, strict=True) if size]
                output = self._step(readable, num_batches)
                if logs and output is not None:
                    elapsed = time.perf_counter() - started
                    metrics = self._metrics(output)
                    bar.set_postfix(loss=f"{metrics['total']:.3f}")
                    seconds = {
                        "step_s": elapsed / (self.step - first_step),
                        "data_wait": waiting / elapsed,
                    }
                    if log is not None:
                        log.write("train", self.step, {**metrics, **seconds})
                every = config.train.checkpoint_every
                if every and self.step - saved_step >= every and self.batch < num_batches:
                    self.save()
                    saved_step = self.step
                self.interrupts.release()
                self.interrupts.defer()
        self.interrupts.release()

    def _micro_batches(self, num_batches: int) -> Iterator[list[Batch]]:
        """Yield the batches of each optimizer step of the rest of the epoch."""
        loader = load_batches(
            self.setup.dataset,
            self.setup.batches,
            self.epoch,
            first=self.batch,
            share=(rank(), world_size()),
            workers=min(self.config.data.workers, os.cpu_count() or 1),
            pin_memory=self.device.type == "cuda",
        )
        batches: list[Batch] = []
        for number, batch in enumerate(loader, start=self.batch + 1):
            # What dropout draws in a batch is a function of its number, so that a checkpoint need
            # not hold the state of a generator (and of each process's).
            torch.manual_seed(seed_of(self.config.train.seed, self.epoch, number, rank()))
            self._report_unreadable(batch.unreadable)
            batches.append(batch)
            if number % self.config.optim.accumulate == 0 or number == num_batches:
                yield batches
                batches = []

    def _step(self, batches: list[Batch], num_batches: int) -> StepOutput | None:
        """Take an optimizer step by these batches; None when no image of them can be read."""
        optim = self.config.optim
        output = None
        if batches:
            steps_an_epoch = math.ceil(num_batches / optim.accumulate)
            factor = learning_rate_factor(
                self.step,
                schedule=optim.schedule,
                warmup_steps=optim.warmup_steps,
                total_steps=steps_an_epoch * self.config.train.epochs,
                drops=self.drops,
            )
            output = training_step(
                self.parallel,
                batches,
                self.optimizer,
                learning_rate_factor=factor,
                clip_norm=optim.clip_norm,
                autocast=self.autocast,
                device=self.device,
            )
            self._count_skipped(output, batches)
        if self.averaged:
            self.averaged.update(self.model, self.step)
        self.step += 1
        return output

    def _count_skipped(self, output: StepOutput, batches: list[Batch]) -> None:
        if output.updated:
            self.skipped_steps = 0
            return
        self.skipped_steps += 1
        if rank() == 0:
            print(f"step {self.step}: the gradient is not finite, step skipped", file=sys.stderr)
        if self.skipped_steps < MAX_SKIPPED_STEPS:
            return
        path = self.run / f"not_finite_batch{rank() or ''}.pt"
        buffer = io.BytesIO()
        torch.save([vars(batch) for batch in batches], buffer)
        save_bytes(buffer.getvalue(), path)
        raise CaptionerError(
            f"the gradient was not finite in {MAX_SKIPPED_STEPS} steps in a row; the last batch is "
            f"in {path}; lower optim.lr or set optim.clip_norm, and start from an earlier model"
        )

    def _metrics(self, step: StepOutput) -> dict[str, Any]:
        output = step.output
        rates = [group["lr"] for group in self.optimizer.param_groups if group["clip"]]
        return {
            "epoch": self.epoch,
            **logged_metrics(output.metrics),
            **attention_statistics(output.output, output.lengths),
            "learning_rate": max(rates),
            "gradient_norm": float(step.gradient_norm),
        }

    # --- validation -------------------------------------------------------------------------------

    @property
    def evaluated_model(self) -> CaptionModel:
        """The model that is validated and saved: the averaged one if there is one."""
        return self.averaged.model if self.averaged else self.model

    def _validate(self) -> Validation:
        setup, config = self.setup, self.config
        # what attention.at_test: sample draws
        torch.manual_seed(seed_of(config.train.seed, self.epoch, 0, rank()))
        return validate(
            self.evaluated_model,
            setup.validation,
            setup.validation_transform,
            setup.vocabulary,
            device=self.device,
            beam_size=config.train.val_beam_size,
            max_words=config.decoding.max_words,
            length_penalty=config.decoding.length_penalty,
            no_repeat_ngram=config.decoding.no_repeat_ngram,
            cache=setup.validation_cache,
            sources=setup.validation_sources,
            decisive_source=config.train.val_source,
        )

    def _report(self, log: RunLog, validation: Validation) -> None:
        self._report_unreadable(validation.unreadable)
        log.write_validation(self.last_validation)
        attends = self.config.decoder.kind != "mean"
        print_validation(self.epoch, validation, attends=attends)
        samples = self.config.train.samples
        self._report_unreadable(
            log_samples(log, self.setup, validation, self.epoch, self.step, samples)
        )

    def _update_best(self, validation: Validation, better: bool) -> None:
        if better:
            self.best = validation.figures[self.config.train.metric]
            self.figures = {"epoch": self.epoch + 1, **validation.figures}
            self.bad_epochs = 0
            return
        self.bad_epochs += 1
        if self.config.optim.schedule == "plateau":
            self.drops += self.bad_epochs % self.config.optim.plateau_epochs == 0

    def _out_of_patience(self) -> bool:
        patience = self.config.train.patience
        return bool(patience) and self.bad_epochs >= patience

    def _report_unreadable(self, images: list[tuple[str, str]]) -> None:
        for path, reason in images:
            if path not in self.unreadable:
                self.unreadable.add(path)
                print(
                    f"{path}: {reason}, left out ({len(self.unreadable)} so far)", file=sys.stderr
                )

    # --- checkpoints ------------------------------------------------------------------------------

    def save(self) -> None:
        """Write the `last` folder, with all that `restore` needs."""
        self._write("last", with_state=True)

    def _write(self, name: str, **options: Any) -> None:
        from_first_process(lambda: save_checkpoint(self, self.run / name, **options))

    def restore(self, folder: Path) -> None:
        """Go back to a checkpoint.

        Raises:
            CheckpointError: It does not belong to this recipe, or an earlier version wrote it.
        """
        restore_checkpoint(self, folder)
