"""One optimizer step: learning rate, forward, backward, clip, update, average."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from captioner.data.batch import Batch
from captioner.models.build import CaptionModel
from captioner.training.task import LossOutput, TrainingTask


@dataclass(frozen=True)
class StepOutput:
    """Result of an optimizer step.

    Args:
        output: Loss output of the last micro-batch.
        gradient_norm: Scalar, before clipping.
        updated: Whether the weights were updated; they are not when the gradient is not finite.
    """

    output: LossOutput
    gradient_norm: Tensor
    updated: bool


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
        task: Owns all trainable parameters; wrapped by DistributedDataParallel where there are
            several processes.
        batches: Micro-batches, at least one; none is empty in all processes.
        optimizer: Its groups hold `base_lr` and `clip` (see `build_optimizer`).
        learning_rate_factor: Multiplies each group's `base_lr`.
        clip_norm: Largest norm of the gradient of the groups with `clip`; 0 does not clip.
        autocast: Context of the forward pass.
        device: Where the batches are moved.

    Returns:
        The losses, the gradient's norm, and whether there was an update: a gradient that is not
        finite changes nothing.
    """
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * learning_rate_factor
    optimizer.zero_grad(set_to_none=True)
    for number, batch in enumerate(batches, start=1):
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


def learning_rate_factor(
    step: int, *, schedule: str, warmup_steps: int, total_steps: int, drops: int = 0
) -> float:
    """Return the factor on the base rates at a step, a pure function of its arguments.

    Linear warm-up, then constant, half a cosine down to zero at `total_steps`, or (plateau) a
    tenth for each drop so far.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "cosine":
        progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
    return 0.1**drops if schedule == "plateau" else 1.0


class AveragedModel:
    """Exponential moving average of a model's weights, with a short memory at the start.

    Args:
        model: Model whose weights are averaged; it is copied.
        decay: Share that the average keeps in an update.
    """

    def __init__(self, model: CaptionModel, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model: CaptionModel, step: int) -> None:
        """Move the average towards the weights after optimizer step `step`, counted from 0."""
        weight = 1.0 - min(self.decay, (1 + step) / (10 + step))
        averages = dict(self.model.named_parameters())
        pairs = [(averages[name], p) for name, p in model.named_parameters() if p.requires_grad]
        torch._foreach_lerp_([a for a, _ in pairs], [p for _, p in pairs], weight)
        torch._foreach_copy_(list(self.model.buffers()), list(model.buffers()))
