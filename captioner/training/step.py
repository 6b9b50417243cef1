"""The training loop of an epoch, and one optimizer step: loss, gradient, update."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from captioner.config import OptimConfig
from captioner.data.batch import Batch
from captioner.data.dataset import load_batches
from captioner.errors import CaptionerError
from captioner.log import logger, progress_bar
from captioner.runtime.cores import available_cores
from captioner.runtime.distributed import mean_by_name, rank, sum_over_processes, world_size
from captioner.training.interrupts import DeferredInterrupts
from captioner.training.optimizer import AveragedModel
from captioner.training.run_log import RunLog
from captioner.training.setup import Setup
from captioner.training.task import LossOutput, TrainingTask

MAX_SKIPPED_STEPS = 10  # in a row, whose gradients are not finite; then the run stops


@dataclass(frozen=True)
class StepOutput:
    """Result of an optimizer step."""

    output: LossOutput  # of the last micro-batch
    gradient_norm: Tensor  # scalar, before clipping
    updated: Tensor  # bool scalar; the weights are not when the gradient is not finite


def training_step(
    task: TrainingTask | DistributedDataParallel,
    batches: Sequence[Batch],
    optimizer: torch.optim.Optimizer,
    *,
    learning_rate_factor: float,
    clip_norm: float,
    autocast: AbstractContextManager[object],
    device: torch.device,
) -> StepOutput:
    """Update the task's parameters once, by the mean gradient of some batches.

    Args:
        task: Owns all trainable parameters.
        batches: Micro-batches, at least one; none is empty in all processes.
        optimizer: Its groups hold `base_lr` (see `build_optimizer`).
        learning_rate_factor: Multiplies each group's `base_lr`.
        clip_norm: Largest norm of the gradient; 0 does not clip.
    """
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * learning_rate_factor
    for number, batch in enumerate(batches, start=1):
        torch.manual_seed(batch.seed)  # so that a checkpoint need not hold dropout's generators
        exchange: AbstractContextManager[object] = nullcontext()
        if isinstance(task, DistributedDataParallel) and number < len(batches):
            exchange = task.no_sync()  # once a step, while the last backward pass goes on
        with exchange:
            with autocast:
                output: LossOutput = task(batch.to(device))
            (output.loss / len(batches)).backward()
    gradient_norm = clip_gradients(optimizer, clip_norm)
    updated = torch.isfinite(gradient_norm)
    if updated:  # the only value that a step reads from the device
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return StepOutput(output, gradient_norm, updated)


def clip_gradients(optimizer: torch.optim.Optimizer, clip_norm: float) -> Tensor:
    """Scale the gradients, and return their norm before that."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return nn.utils.clip_grad_norm_(parameters, clip_norm or math.inf)


def learning_rate_factor(step: int, total_steps: int, config: OptimConfig, drops: int = 0) -> float:
    """Return the factor on the base rates at a step.

    Linear warm-up, then constant, half a cosine down to zero at `total_steps`, or (plateau) a
    tenth for each drop so far.
    """
    warmup_steps = config.warmup_steps
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if config.schedule == "cosine":
        progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
    return 0.1**drops if config.schedule == "plateau" else 1.0


class TrainingLoop:
    """The steps of an epoch; `Trainer` adds validation and checkpoints.

    Args:
        averaged: Average of the weights over the steps, if there is one.
        take_step: Called with micro-batches and `learning_rate_factor`, as `training_step`.

    Attributes:
        epoch, batch, step: The next ones; `step` counts the optimizer's.
        skipped_steps: Steps in a row whose gradient was not finite.
        lr_drops: How often the plateau schedule has lowered the learning rate.
    """

    def __init__(
        self,
        setup: Setup,
        device: torch.device,
        optimizer: torch.optim.Optimizer,
        averaged: AveragedModel | None,
        take_step: Callable[..., StepOutput],
    ) -> None:
        self.setup, self.device, self.optimizer = setup, device, optimizer
        self.averaged, self.take_step = averaged, take_step
        self.config, self.task, self.model = setup.config, setup.task, setup.task.model
        self.rank, self.processes = rank(), world_size()
        self.interrupts = DeferredInterrupts()
        self.epoch = self.batch = self.step = self.lr_drops = 0
        self.skipped_steps = torch.zeros((), dtype=torch.long, device=device)
        self.unreadable: set[str] = set()  # images that were reported

    def save(self) -> None:
        """Write a checkpoint (`Trainer`)."""
        raise NotImplementedError

    def train_epoch(self, log: RunLog | None) -> None:
        """Take the steps of this epoch that are not done yet."""
        config, setup = self.config, self.setup
        num_batches = len(setup.batches.epoch(self.epoch))
        steps = math.ceil(num_batches / config.optim.accumulate) * config.train.epochs
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
        self.task.train()
        first_step = saved_step = self.step
        started, data_wait_s = time.perf_counter(), 0.0
        self.interrupts.deferred = True  # also while batches are fetched, or workers would die
        with bar:
            while True:
                asked = time.perf_counter()
                try:
                    batches = list(islice(loader, config.optim.accumulate))
                except CaptionerError:
                    self.interrupts.deferred = False
                    raise
                if not batches:
                    break
                data_wait_s += time.perf_counter() - asked
                self.report_unreadable([image for batch in batches for image in batch.unreadable])
                nonempty = self._with_counts(batches)
                output = None
                if nonempty:
                    factor = learning_rate_factor(self.step, steps, config.optim, self.lr_drops)
                    output = self.take_step(nonempty, learning_rate_factor=factor)
                    skipped = self.skipped_steps + 1
                    self.skipped_steps = torch.where(output.updated, 0, skipped)
                if self.averaged:
                    self.averaged.update(self.model, self.step)
                self.batch += len(batches)
                self.step += 1
                bar.update(len(batches))
                # the first step of a run too, or a short one would show no loss
                if output and (self.step == 1 or self.step % config.train.log_every == 0):
                    self._check_skipped()
                    elapsed = time.perf_counter() - started
                    metrics = self._metrics(output)
                    metrics["step_s"] = elapsed / (self.step - first_step)
                    metrics["data_wait"] = data_wait_s / elapsed
                    bar.set_postfix(loss=f"{metrics['total']:.3f}")
                    if log is not None:
                        log.write("train", self.step, metrics)
                every = config.train.checkpoint_every
                if every and self.step - saved_step >= every and self.batch < num_batches:
                    self.save()
                    saved_step = self.step
        self.interrupts.release()

    def _with_counts(self, batches: list[Batch]) -> list[Batch]:
        """Return the batches that hold a caption, with the counts that their losses divide by.

        Processes agree here on the counts, and on whether a signal came to one of them.
        """
        counts = [float(n) for batch in batches for n in (batch.words, batch.captions)]
        interrupted: float = self.interrupts.pending
        if self.processes > 1:
            sums = sum_over_processes([interrupted, *counts])
            interrupted, *counts = (value / self.processes for value in sums)
        if interrupted:
            self.interrupts.interrupt()
        pairs = zip(batches, counts[::2], counts[1::2], strict=True)
        return [replace(b, words=words, captions=number) for b, words, number in pairs if number]

    def _check_skipped(self) -> None:
        """Report steps that were skipped, and end the run after many in a row."""
        skipped = int(self.skipped_steps)
        if skipped and self.rank == 0:
            logger.warning(
                f"step {self.step}: the gradient was not finite in the last {skipped} steps, which "
                "were skipped"
            )
        if skipped >= MAX_SKIPPED_STEPS:
            raise CaptionerError(
                f"the gradient was not finite in {skipped} steps in a row; lower optim.lr or set "
                "optim.clip_norm, and start from an earlier model"
            )

    def _metrics(self, step: StepOutput) -> dict[str, Any]:
        """Return the figures of a step for the log: means over the whole batch."""
        metrics = {name: float(value) for name, value in step.output.metrics.items()}
        if self.processes > 1:
            metrics = mean_by_name(metrics)
        if "advantage" in metrics:  # a mean square, as only that of all processes is their mean
            metrics["advantage"] = math.sqrt(metrics["advantage"])
        rate = max(float(group["lr"]) for group in self.optimizer.param_groups)
        norm = float(step.gradient_norm)
        return {"epoch": self.epoch, **metrics, "learning_rate": rate, "gradient_norm": norm}

    def report_unreadable(self, images: list[tuple[str, str]]) -> None:
        """Name images that were left out, each once, with the reason."""
        for path, reason in images:
            if path not in self.unreadable:
                self.unreadable.add(path)
                logger.warning(f"{path}: {reason}, left out ({len(self.unreadable)} so far)")
