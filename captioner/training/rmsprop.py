"""RMSProp as Graves has it, with which the paper trains on Flickr8k."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class GravesRMSprop(torch.optim.Optimizer):
    """RMSProp of Graves (2013, "Generating sequences with recurrent neural networks", eq. 38-41).

    For a gradient g, running means n of g^2 and m of g, and the last update u:

        n <- alpha n + (1 - alpha) g^2,  m <- alpha m + (1 - alpha) g
        u <- momentum u - lr g / sqrt(n - m^2 + eps),  weights <- weights + u

    `torch.optim.RMSprop(centered=True)` differs in adding eps outside the root, which at 1e-4 makes
    the steps of small gradients up to a hundred times larger.

    Args:
        params: Parameters, or groups of them.
        lr: Step size; Graves' and the original code's is 1e-4.
        alpha: Decay of the running means.
        momentum: Share of the last update in the next.
        eps: Added under the root.
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
            for param in params:
                if not self.state[param]:
                    for name in ("square_mean", "mean", "update"):
                        self.state[param][name] = torch.zeros_like(param)
            square_means, means, updates = (
                [self.state[param][name] for param in params]
                for name in ("square_mean", "mean", "update")
            )
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
