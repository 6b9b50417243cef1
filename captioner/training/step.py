"""The optimizer steps of an epoch: batches, loss, gradient, update, log."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from captioner.config import OptimConfig
from captioner.data.batch import Batch
from captioner.errors import CaptionerError
from captioner.log import logger
from captioner.runtime.device import autocast
from captioner.runtime.distributed import (
    mean_by_name,
    parallel,
    rank,
    sum_over_processes,
    world_size,
)
from captioner.training.interrupts import DeferredInterrupts
from captioner.training.optimizer import AveragedModel, build_optimizer
from captioner.training.reporting import gradients_not_finite
from captioner.training.run_log import RunLog
from captioner.training.setup import Setup
from captioner.training.task import LossOutput, TrainingTask

MAX_SKIPPED_STEPS = 10  # in a row, whose gradients are not finite; then the run stops


class StepLoop(ABC):
    """Takes the optimizer steps of an epoch; `Trainer` adds validation and checkpoints."""

    def __init__(self, setup: Setup, run: Path, device: torch.device) -> None:
        self.setup, self.run, self.device = setup, run, device
        self.config, self.task, self.model = setup.config, setup.task, setup.task.model
        self.rank, self.processes = rank(), world_size()
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
        self.drops = 0  # of the plateau schedule
        self.unreadable = set(setup.reported_unreadable)

    @abstractmethod
    def save(self) -> None:
        """Write the `last` folder."""

    def train_epoch(
        self, loader: Iterator[Batch], num_batches: int, bar: tqdm[Any], log: RunLog | None
    ) -> None:
        """Take the steps of this epoch that are not done yet.

        Args:
            loader: The batches that are not done yet.
            num_batches: Of the whole epoch.

        Raises:
            KeyboardInterrupt: A signal came; no step is half done unless interrupts are deferred.
            CaptionerError: The run cannot go on; likewise.
        """
        config = self.config.train
        self.task.train()
        first_step = saved_step = self.step
        started, waiting = time.perf_counter(), 0.0
        self.interrupts.deferred = True  # also while batches are fetched, or workers would die
        while True:
            asked = time.perf_counter()
            try:
                batches = list(islice(loader, self.config.optim.accumulate))
            except CaptionerError:
                self.interrupts.deferred = False
                raise
            if not batches:
                break
            waiting += time.perf_counter() - asked
            self.report_unreadable([image for batch in batches for image in batch.unreadable])
            counted = self._counted(batches)
            self.batch += len(batches)
            bar.update(len(batches))
            output = self._step(counted, num_batches) if counted else None
            if self.averaged:
                self.averaged.update(self.model, self.step)
            self.step += 1
            # the first step of a run too, or a short one would show no loss
            if output is not None and (self.step == 1 or self.step % config.log_every == 0):
                elapsed = time.perf_counter() - started
                metrics = self._metrics(output)
                metrics["step_s"] = elapsed / (self.step - first_step)
                metrics["data_wait"] = waiting / elapsed
                bar.set_postfix(loss=f"{metrics['total']:.3f}")
                if log is not None:
                    log.write("train", self.step, metrics)
            every = config.checkpoint_every
            if every and self.step - saved_step >= every and self.batch < num_batches:
                self.save()
                saved_step = self.step
        self.interrupts.release()

    def _counted(self, batches: list[Batch]) -> list[Batch]:
        """Return the batches that hold a caption, with the counts that their losses divide by.

        Processes agree here on the counts, and on whether a signal came to one of them.
        """
        counts = [number for batch in batches for number in (batch.words, batch.captions)]
        interrupted: float = self.interrupts.pending
        if self.processes > 1:
            sums = sum_over_processes([interrupted, *counts])
            interrupted, *counts = (value / self.processes for value in sums)
        if interrupted:
            self.interrupts.interrupt()
        pairs = zip(batches, counts[::2], counts[1::2], strict=True)
        return [replace(b, words=words, captions=number) for b, words, number in pairs if number]

    def _step(self, batches: list[Batch], num_batches: int) -> StepOutput:
        """Take one optimizer step by the gradient of these batches."""
        optim = self.config.optim
        steps = math.ceil(num_batches / optim.accumulate) * self.config.train.epochs
        output = training_step(
            self.parallel,
            batches,
            self.optimizer,
            learning_rate_factor=learning_rate_factor(self.step, steps, optim, self.drops),
            clip_norm=optim.clip_norm,
            autocast=self.autocast,
            device=self.device,
        )
        self.skipped_steps = 0 if output.updated else self.skipped_steps + 1
        if not output.updated and self.rank == 0:
            logger.warning(f"step {self.step}: the gradient is not finite, step skipped")
        if self.skipped_steps >= MAX_SKIPPED_STEPS:
            path = self.run / f"not_finite_batch{self.rank or ''}.pt"
            raise gradients_not_finite(batches, path, MAX_SKIPPED_STEPS)
        return output

    def _metrics(self, step: StepOutput) -> dict[str, Any]:
        """Return the figures of a step for the log: means over the whole batch."""
        metrics = {name: float(value) for name, value in step.output.metrics.items()}
        if self.processes > 1:
            metrics = mean_by_name(metrics)
        if "advantage" in metrics:  # a mean square, as only that of all processes is their mean
            metrics["advantage"] = math.sqrt(metrics["advantage"])
        rate = max(group["lr"] for group in self.optimizer.param_groups if group["clip"])
        norm = float(step.gradient_norm)
        return {"epoch": self.epoch, **metrics, "learning_rate": rate, "gradient_norm": norm}

    def report_unreadable(self, images: list[tuple[str, str]]) -> None:
        """Name images that were left out, each once, with the reason."""
        for path, reason in images:
            if path not in self.unreadable:
                self.unreadable.add(path)
                logger.warning(f"{path}: {reason}, left out ({len(self.unreadable)} so far)")


@dataclass(frozen=True)
class StepOutput:
    """Result of an optimizer step."""

    output: LossOutput  # of the last micro-batch
    gradient_norm: Tensor  # scalar, before clipping
    updated: bool  # the weights; they are not when the gradient is not finite


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
        optimizer: Its groups hold `base_lr` and `clip` (see `build_optimizer`).
        learning_rate_factor: Multiplies each group's `base_lr`.
        clip_norm: Largest norm of the gradient of the groups with `clip`; 0 does not clip.
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
    clipped = [p for group in optimizer.param_groups if group["clip"] for p in group["params"]]
    gradient_norm = nn.utils.clip_grad_norm_(clipped, clip_norm or math.inf)
    updated = bool(torch.isfinite(gradient_norm))  # the only value a step reads from the device
    if updated:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return StepOutput(output, gradient_norm, updated)


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
