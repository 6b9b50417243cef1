"""Optimizers, their parameter groups, and the average of the weights that they make."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

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
    device = task.model.decoder.embedding.weight.device
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
        return GravesRMSprop(settings, options)
    return torch.optim.RMSprop(settings, centered=config.centered, **options)


class GravesRMSprop(torch.optim.Optimizer):
    """RMSProp of Graves (2013, "Generating sequences with recurrent neural networks", eq. 38-41).

    For a gradient g, running means n of g^2 and m of g, and the last update u:

        n <- alpha n + (1 - alpha) g^2,  m <- alpha m + (1 - alpha) g
        u <- momentum u - lr g / sqrt(n - m^2 + eps),  weights <- weights + u

    `torch.optim.RMSprop(centered=True)` differs in adding eps outside the root, which at 1e-4 makes
    the steps of small gradients up to a hundred times larger.

    Each group has `lr`, `alpha`, `momentum`, `eps`, and `weight_decay`, a factor on the weights
    that is added to the gradient.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the weights once."""
        for group in self.param_groups:
            alpha = group["alpha"]
            for param in group["params"]:
                if param.grad is None:
                    continue
                state, grad = self.state[param], param.grad
                if not state:
                    names = ("square_mean", "mean", "update")
                    state.update({name: torch.zeros_like(param) for name in names})
                if group["weight_decay"]:
                    grad = grad.add(param, alpha=group["weight_decay"])
                square_mean = state["square_mean"].mul_(alpha).addcmul_(grad, grad, value=1 - alpha)
                mean = state["mean"].lerp_(grad, 1 - alpha)
                # rounding can make the variance negative
                variance = (square_mean - mean * mean).clamp_min_(0.0)
                update = state["update"].mul_(group["momentum"])
                update.addcdiv_(grad, variance.add_(group["eps"]).sqrt_(), value=-group["lr"])
                param.add_(update)


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
        if model.encoder.batch_norm == "train" and (buffers := list(model.buffers())):
            torch._foreach_copy_(list(self.model.buffers()), buffers)
