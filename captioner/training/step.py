"""One optimizer step: forward, backward, clip, update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from captioner.data.batch import Batch
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
    task: TrainingTask,
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
        batches: Micro-batches, at least one; none is empty.
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
    for batch in batches:
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
