"""Training steps of a few fixed shapes, whose kernels are recorded once and started together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from captioner.config.settings import Config
from captioner.data.batch import Batch
from captioner.errors import error_summary
from captioner.log import logger
from captioner.runtime.cuda_graphs import GraphCache
from captioner.runtime.distributed import world_size
from captioner.runtime.gradients import average_gradients
from captioner.training.step import StepOutput, clip_gradients
from captioner.training.task import LossOutput, TrainingTask

STEPS = (12, 16, 20, 28)  # numbers of words that captions are padded to, and the longest caption
MULTIPLE = 16  # numbers of images and captions are multiples of this

Shape = tuple[int, int, int]  # images, captions, steps
StepKind = Literal["graphs", "inductor", "off"]


def step_kind(config: Config, device: torch.device, processes: int) -> StepKind:
    """Return how steps are taken by `train.compile`, and say why where it is another way."""
    kind = config.train.compile
    if kind == "auto":
        kind = "graphs" if device.type == "cuda" else "off"
    if kind == "off":
        return "off"
    hard = config.attention.select == "hard"
    if kind == "inductor" and hard and device.type == "cuda":
        logger.info(
            "train.compile: steps are recorded as CUDA graphs, because inductor cannot compile the "
            "integers of hard attention's draws for a GPU"
        )
        kind = "graphs"
    averages = hard and config.hard.baseline == "moving_average"
    trains_batch_norm = config.encoder.trainable_from and config.encoder.batch_norm == "train"
    reasons = {
        "graphs need a GPU": kind == "graphs" and device.type != "cuda",
        "a moving average is exchanged in the middle of a step": averages and processes > 1,
        "self-critical training scores captions on the CPU": bool(config.self_critical.samples),
        "empty images would change the statistics of batch norm": bool(trains_batch_norm),
        f"optim.name {config.optim.name} skips a step only where Python sees it": (
            config.optim.name not in ("adam", "adamw")
        ),
    }
    for reason, applies in reasons.items():
        if applies:
            logger.info(f"train.compile: steps are started one kernel at a time, because {reason}")
            return "off"
    return kind


@dataclass(eq=False)
class FixedShapeStep:
    """Updates the task's parameters once, by the mean gradient of some batches.

    Nothing is read from the device, and a step whose gradient is not finite changes nothing. The
    first batch of a shape is computed kernel by kernel; the second is recorded in a CUDA graph,
    which all later ones replay. Processes exchange their gradients between two graphs, so that
    each may replay a graph of another shape.

    Args:
        optimizer: Made with `on_device`.
        kind: `graphs`, `inductor` (torch.compile), or `off`, which computes kernel by kernel.
        captions: Captions of a full batch, in each process.
        longest: Words of the longest caption, with its end.
        compress: Whether processes exchange gradients in bfloat16.
    """

    task: TrainingTask
    optimizer: torch.optim.Optimizer
    _: KW_ONLY
    clip_norm: float
    autocast: AbstractContextManager[object]
    device: torch.device
    kind: StepKind
    captions: int
    longest: int
    compress: bool = False

    def __post_init__(self) -> None:
        self.steps = (*(steps for steps in STEPS if steps < self.longest), self.longest)
        self.share = torch.ones((), device=self.device)  # of a batch in the gradient
        self.compute_loss = self.task
        if self.kind == "inductor":
            # Each shape is compiled, up to this many.
            torch._dynamo.config.recompile_limit = 64
            # Without CUDA graphs of its own, which would overwrite what the backward pass reads.
            self.compute_loss = torch.compile(self.task, fullgraph=True, dynamic=False)  # type: ignore[assignment]
        record = self.kind != "off" and self.device.type == "cuda"
        self.graphs = GraphCache(record=record, device=self.device)
        # In memory of its own: it is replayed before the metrics of a shape are read.
        self.updates = GraphCache(record=record, device=self.device)
        self.shapes: set[Shape] = set()  # of earlier batches
        self.parameters = [p for p in self.task.parameters() if p.requires_grad]
        if world_size() > 1:  # also of a process whose first batch is empty
            for parameter in self.parameters:
                parameter.grad = torch.zeros_like(parameter)

    def __call__(self, batches: Sequence[Batch], *, learning_rate_factor: float) -> StepOutput:
        """Take a step; arguments as of `training_step`."""
        for group in self.optimizer.param_groups:
            group["lr"].fill_(group["base_lr"] * learning_rate_factor)
        words = sum(batch.words for batch in batches)
        for batch in batches:
            self.share.fill_(batch.words / words)
            if not len(batch):  # other processes have captions
                output = self.task(batch.to(self.device))
                continue
            shape = self._shape_of(batch)
            padded = self.graphs.hold(shape, pad_batch(batch.to(self.device), *shape))
            torch.manual_seed(batch.seed)
            output = self.graphs.run(shape, partial(self.forward_backward, padded))
        average_gradients(self.parameters, compress=self.compress)
        gradient_norm, updated = self.updates.run("update", self.update)
        return StepOutput(output, gradient_norm, updated)

    def forward_backward(self, batch: Batch) -> LossOutput:
        """Add the gradient of a padded batch, times its share, to `grad`."""
        with self.autocast:
            try:
                output: LossOutput = self.compute_loss(batch)
            except torch._dynamo.exc.TorchDynamoException as error:  # as for want of a C compiler
                reason = error_summary(error, part="line")
                logger.info(f"train.compile: steps are taken without inductor, because {reason}")
                self.compute_loss = self.task
                output = self.task(batch)
        (output.loss * self.share).backward()
        return LossOutput(output.loss.detach(), output.metrics)

    def update(self) -> tuple[Tensor, Tensor]:
        """Update the weights, if the gradient is finite; return its norm, and whether it is."""
        gradient_norm = clip_gradients(self.optimizer, self.clip_norm)
        updated = torch.isfinite(gradient_norm)
        self.optimizer.found_inf = (~updated).float()  # type: ignore[attr-defined]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)  # graphs add to these tensors
        return gradient_norm, updated

    def _shape_of(self, batch: Batch) -> Shape:
        """Return the smallest shape that holds a batch, one that there is already if possible."""
        images = math.ceil(len(batch.image_numbers) / MULTIPLE) * MULTIPLE
        captions = math.ceil(max(len(batch), self.captions) / MULTIPLE) * MULTIPLE
        steps = min(steps for steps in self.steps if steps >= batch.targets.shape[1])
        held = [s for s in self.shapes if s[1:] == (captions, steps) and s[0] <= 2 * images]
        shape = min((s for s in held if s[0] >= images), default=(images, captions, steps))
        self.shapes.add(shape)
        return shape


def pad_batch(batch: Batch, images: int, captions: int, steps: int) -> Batch:
    """Return the batch in a fixed shape: B = images, N = captions, T = steps.

    The captions that fill it up have no words and so no weight in any loss; their image is the
    first. Images that fill it up are empty.
    """
    sizes = dict.fromkeys(("inputs", "image_numbers", "image_seeds"), images)
    sizes |= dict.fromkeys(("image_index", "weights", "seeds", "lengths"), captions)
    tensors: dict[str, Any] = {
        name: F.pad(value, [0, 0] * (value.dim() - 1) + [0, size - len(value)])
        for name, size in sizes.items()
        if (value := getattr(batch, name)) is not None
    }
    device = batch.targets.device
    lengths = tensors.pop("lengths").to(device, non_blocking=True)
    missing = (0, steps - batch.targets.shape[1], 0, captions - len(batch.targets))
    counts = torch.tensor([batch.words, batch.captions], dtype=torch.get_default_dtype())
    words, texts = counts.to(device, non_blocking=True)
    return replace(
        batch,
        **tensors,
        targets=F.pad(batch.targets, missing),
        lengths=torch.arange(steps, device=device) < lengths.unsqueeze(1),
        words=words,
        captions=texts,
    )
