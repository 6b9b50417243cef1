"""Optimiser, learning rate and averaged weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from captioner.config import OptimConfig
from captioner.models.build import CaptionModel
from captioner.training.rmsprop import GravesRMSprop


def build_optimizer(
    model: CaptionModel, config: OptimConfig, *, beside: Sequence[nn.Parameter] = ()
) -> torch.optim.Optimizer:
    """Two rates (decoder and fine-tuned backbone), weight decay on weight matrices only.

    beside: weights that are learned beside the model, at the decoder's rate and without decay.
    """
    backbone = {id(parameter) for parameter in model.encoder.backbone.parameters()}
    embeddings = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)
    }
    # By kind and not by value, so that a run may be resumed with other rates in the same groups.
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        decays = parameter.dim() > 1 and id(parameter) not in embeddings
        groups.setdefault((id(parameter) in backbone, decays), []).append(parameter)
    if beside:
        groups.setdefault((False, False), []).extend(beside)
    settings = []
    for (pretrained, decays), parameters in groups.items():
        rate = config.encoder_lr if pretrained else config.lr
        decay = config.weight_decay if decays else 0.0
        settings.append({"params": parameters, "lr": rate, "base_lr": rate, "weight_decay": decay})
    if config.name == "adamw":
        return torch.optim.AdamW(settings, betas=(0.9, 0.98), eps=config.eps)
    if config.name == "adam":
        return torch.optim.Adam(settings, eps=config.eps)
    if config.name == "rmsprop_graves":
        return GravesRMSprop(settings, alpha=config.alpha, momentum=config.momentum, eps=config.eps)
    return torch.optim.RMSprop(
        settings,
        alpha=config.alpha,
        momentum=config.momentum,
        eps=config.eps,
        centered=config.centered,
    )


def load_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Go on from a saved state, but with the rates and the decay that the optimiser has now.

    Raises:
        ValueError: the state is of other groups of weights.
    """
    given = [(group["base_lr"], group["weight_decay"]) for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, (rate, decay) in zip(optimizer.param_groups, given, strict=True):
        group["base_lr"], group["weight_decay"] = rate, decay


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
        torch._foreach_copy_(list(self.model.buffers()), list(model.buffers()))
