"""Optimiser, learning rate and averaged weights."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from captioner.config import OptimConfig
from captioner.model import CaptionModel


def build_optimizer(model: CaptionModel, config: OptimConfig) -> torch.optim.Optimizer:
    """Two rates (decoder and fine-tuned backbone), weight decay on weight matrices only."""
    backbone = {id(parameter) for parameter in model.encoder.backbone.parameters()}
    embeddings = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)
    }
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        rate = config.encoder_lr if id(parameter) in backbone else config.lr
        decays = parameter.dim() > 1 and id(parameter) not in embeddings
        groups.setdefault((rate, config.weight_decay if decays else 0.0), []).append(parameter)
    settings = [
        {"params": parameters, "lr": rate, "base_lr": rate, "weight_decay": decay}
        for (rate, decay), parameters in groups.items()
    ]
    if config.name == "adamw":
        return torch.optim.AdamW(settings, betas=(0.9, 0.98))
    if config.name == "adam":
        return torch.optim.Adam(settings)
    return torch.optim.RMSprop(settings)


def learning_rate_factor(
    step: int, *, schedule: str, warmup_steps: int, total_steps: int, drops: int = 0
) -> float:
    """Factor on the base rate: a pure function of the step.

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
    """Exponential moving average of the weights, with a short memory at the start."""

    def __init__(self, model: CaptionModel, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model: CaptionModel, step: int) -> None:
        weight = 1.0 - min(self.decay, (1 + step) / (10 + step))
        own = dict(self.model.named_parameters())
        pairs = [(own[name], p) for name, p in model.named_parameters() if p.requires_grad]
        torch._foreach_lerp_([a for a, _ in pairs], [b for _, b in pairs], weight)
        for mine, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            mine.copy_(theirs)
