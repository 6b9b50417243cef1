"""One optimizer step: loss, gradient, update, and what the processes of a run share for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from captioner.config.settings import OptimConfig
from captioner.data.batch import Batch
from captioner.runtime.distributed import mean_by_name, mean_over_processes
from captioner.runtime.processes import DeferredInterrupts
from captioner.training.task import LossOutput, TrainingTask


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
    """Update the task's parameters once, by the gradient of some batches as if they were one.

    Args:
        batches: Micro-batches, at least one; none is empty in all processes.
        optimizer: Its groups hold `base_lr` (see `build_optimizer`).
        learning_rate_factor: Multiplies each group's `base_lr`.
        clip_norm: Largest norm of the gradient; 0 does not clip.
    """
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * learning_rate_factor
    words = sum(batch.words for batch in batches)
    for number, batch in enumerate(batches, start=1):
        torch.manual_seed(batch.seed)  # so that a checkpoint need not hold dropout's generators
        exchange: AbstractContextManager[object] = nullcontext()
        if isinstance(task, DistributedDataParallel) and number < len(batches):
            exchange = task.no_sync()  # once a step, while the last backward pass goes on
        with exchange:
            with autocast:
                output: LossOutput = task(batch.to(device))
            (output.loss * (batch.words / words)).backward()  # it is a mean over words
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

    Linear warm-up, then by `config.schedule` constant, half a cosine down to zero at `total_steps`,
    or a tenth for each drop so far.
    """
    warmup_steps = config.warmup_steps
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if config.schedule == "cosine":
        progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
    return 0.1**drops if config.schedule == "plateau" else 1.0


def with_counts(batches: list[Batch], interrupts: DeferredInterrupts) -> list[Batch]:
    """Return the batches that hold a caption, with the counts that their losses divide by.

    Processes agree here on the counts, and end by a KeyboardInterrupt if a signal came to one.
    """
    own = [interrupts.pending, *(n for batch in batches for n in (batch.words, batch.captions))]
    interrupted, *counts = mean_over_processes(torch.tensor(own, dtype=torch.float64)).tolist()
    if interrupted:
        interrupts.interrupt()
    pairs = zip(batches, counts[::2], counts[1::2], strict=True)
    return [replace(b, words=words, captions=number) for b, words, number in pairs if number]


def step_metrics(step: StepOutput, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the figures of a step for the log: means over the batch of all processes."""
    metrics = mean_by_name({name: float(value) for name, value in step.output.metrics.items()})
    if "advantage" in metrics:  # a mean square, as only that of all processes is their mean
        metrics["advantage"] = math.sqrt(metrics["advantage"])
    rate = max(float(group["lr"]) for group in optimizer.param_groups)
    return {**metrics, "learning_rate": rate, "gradient_norm": float(step.gradient_norm)}
