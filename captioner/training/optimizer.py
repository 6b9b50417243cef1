"""Optimizers, their parameter groups, and the average of the weights that they make."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from captioner.config.settings import OptimConfig
from captioner.models.model import CaptionModel
from captioner.training.task import TrainingTask


def build_optimizer(
    task: TrainingTask, config: OptimConfig, *, on_device: bool = False
) -> torch.optim.Optimizer:
    """Return the optimizer of all trainable parameters of a task.

    The groups are: the fine-tuned backbone (`encoder_lr`), everything else (`lr`), each split into
    weight matrices, which decay, and biases, norms and embeddings, which do not. Each group holds
    `base_lr`, the rate before the schedule.

    Args:
        on_device: Adam and AdamW keep rates and step counts on the parameters' device, and a step
            with `optimizer.found_inf` set to 1 changes nothing: nothing is read from the device.
    """
    backbone = {id(parameter) for parameter in task.model.encoder.backbone.parameters()}
    embeddings = {id(m.weight) for m in task.modules() if isinstance(m, nn.Embedding)}
    # By kind and not by value, so that a run may be resumed with other rates in the same groups.
    groups: dict[tuple[str, bool], list[nn.Parameter]] = {}
    for parameter in task.parameters():
        if parameter.requires_grad:
            kind = "backbone" if id(parameter) in backbone else "decoder"
            decays = parameter.dim() > 1 and id(parameter) not in embeddings
            groups.setdefault((kind, decays), []).append(parameter)
    device = task.zero_loss().device
    settings: list[dict[str, Any]] = []
    for (kind, decays), parameters in groups.items():
        rate = config.encoder_lr if kind == "backbone" else config.lr
        lr = torch.tensor(rate, device=device) if on_device else rate
        decay = config.weight_decay if decays else 0.0
        settings.append({"params": parameters, "lr": lr, "base_lr": rate, "weight_decay": decay})
    options: dict[str, Any] = {"eps": config.eps}
    if config.name.startswith("rmsprop"):
        options |= {"alpha": config.alpha, "momentum": config.momentum}
    if on_device:
        options |= {"fused": True, "capturable": device.type == "cuda"}
    if config.name == "adamw":
        return torch.optim.AdamW(settings, betas=(0.9, 0.98), **options)
    if config.name == "adam":
        return torch.optim.Adam(settings, **options)
    if config.name == "rmsprop_graves":
        return GravesRMSprop(settings, **options)
    return torch.optim.RMSprop(settings, centered=config.centered, **options)


class GravesRMSprop(torch.optim.Optimizer):
    """RMSProp of Graves (2013, "Generating sequences with recurrent neural networks", eq. 38-41).

    For a gradient g, running means n of g^2 and m of g, and the last update u:

        n <- alpha n + (1 - alpha) g^2,  m <- alpha m + (1 - alpha) g
        u <- momentum u - lr g / sqrt(n - m^2 + eps),  weights <- weights + u

    `torch.optim.RMSprop(centered=True)` differs in adding eps outside the root, which at 1e-4 makes
    the steps of small gradients up to a hundred times larger.

    Args:
        lr: Graves' and the original code's is 1e-4.
        weight_decay: Factor on the weights that is added to the gradient.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-4,
        *,
        alpha: float = 0.95,
        momentum: float = 0.9,
        eps: float = 1e-4,
        weight_decay: float = 0.0,
    ) -> None:
        settings = {"lr": lr, "alpha": alpha, "momentum": momentum, "eps": eps}
        super().__init__(params, {**settings, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the weights once."""
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if not params:
                continue
            names = ("square_mean", "mean", "update")
            for param in params:
                if not self.state[param]:
                    self.state[param].update({name: torch.zeros_like(param) for name in names})
            square_means, means, updates = ([self.state[p][name] for p in params] for name in names)
            grads: Any = [param.grad for param in params]
            if group["weight_decay"]:
                grads = torch._foreach_add(grads, params, alpha=group["weight_decay"])
            torch._foreach_mul_(square_means, group["alpha"])
            torch._foreach_addcmul_(square_means, grads, grads, 1 - group["alpha"])
            torch._foreach_lerp_(means, grads, 1 - group["alpha"])
            variances = torch._foreach_mul(means, means)
            torch._foreach_neg_(variances)
            torch._foreach_add_(variances, square_means)
            torch._foreach_clamp_min_(variances, 0.0)  # rounding can make it negative
            torch._foreach_add_(variances, group["eps"])
            torch._foreach_sqrt_(variances)
            torch._foreach_mul_(updates, group["momentum"])
            torch._foreach_addcdiv_(updates, grads, variances, -group["lr"])
            torch._foreach_add_(params, updates)


class AveragedModel:
    """Exponential moving average of a model's weights, with a short memory at the start."""

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
        if buffers := list(model.buffers()):
            torch._foreach_copy_(list(self.model.buffers()), buffers)
