"""RMSProp in Graves' form, against its equations written as a plain loop in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from captioner.training.optimizer import GravesRMSprop


def graves(
    start: float,
    gradients: list[float],
    *,
    lr: float,
    alpha: float,
    momentum: float,
    eps: float,
    decay: float,
) -> list[float]:
    """The places of one weight after each of these gradients."""
    weight, n, m, u = start, 0.0, 0.0, 0.0
    places = []
    for gradient in gradients:
        g = gradient + decay * weight
        n = alpha * n + (1 - alpha) * g * g
        m = alpha * m + (1 - alpha) * g
        u = momentum * u - lr * g / np.sqrt(n - m * m + eps)
        weight += u
        places.append(weight)
    return places


@pytest.mark.parametrize(
    ("lr", "alpha", "momentum", "eps", "decay"),
    [(1e-4, 0.95, 0.9, 1e-4, 0.0), (0.1, 0.5, 0.0, 1e-2, 0.0), (0.03, 0.9, 0.8, 1e-6, 0.2)],
)
def test_updates_are_those_of_the_equations(
    lr: float, alpha: float, momentum: float, eps: float, decay: float
) -> None:
    generator = np.random.default_rng(1)
    gradients = generator.normal(size=(20, 2, 3)) * np.array([[1e-4], [3.0]])
    weights = [nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2)]
    optimizer = GravesRMSprop(
        weights, lr, alpha=alpha, momentum=momentum, eps=eps, weight_decay=decay
    )
    for step in range(20):
        for row, weight in enumerate(weights):
            weight.grad = torch.from_numpy(gradients[step, row].copy())
        optimizer.step()
        for row, weight in enumerate(weights):
            for i in range(3):
                expected = graves(
                    1.0,
                    list(gradients[: step + 1, row, i]),
                    lr=lr,
                    alpha=alpha,
                    momentum=momentum,
                    eps=eps,
                    decay=decay,
                )
                assert weight[i].item() == pytest.approx(expected[-1], rel=1e-12)


def test_it_differs_from_the_centred_one_of_pytorch_which_adds_eps_outside_the_root() -> None:
    steps = []
    for kind in (GravesRMSprop, torch.optim.RMSprop):
        weight = nn.Parameter(torch.zeros(1))
        options = {"centered": True} if kind is torch.optim.RMSprop else {}
        optimizer = kind([weight], lr=1e-4, alpha=0.95, momentum=0.9, eps=1e-4, **options)
        weight.grad = torch.full((1,), 1e-4)
        optimizer.step()
        steps.append(-weight.item())
    assert steps[0] == pytest.approx(1e-6, rel=1e-3)
    assert steps[1] > 50 * steps[0]
