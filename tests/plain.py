"""The formulas of the papers for lists of floats, one cell and one word at a time."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from captioner.types import Grid

Vector = list[float]


def grid(photos: int, rows: int, columns: int, dim: int, *, seed: int = 1) -> Grid:
    """A grid of random cells in float64."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(photos, rows * columns, dim, dtype=torch.double, generator=generator)
    return Grid(features, rows, columns)


@torch.no_grad()
def loud(module: Any) -> Any:
    """In float64 and in eval mode, far from its first weights."""
    for parameter in module.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    return module.double().eval()


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def linear(layer: nn.Linear, x: Vector) -> Vector:
    bias = [0.0] * layer.out_features if layer.bias is None else layer.bias.tolist()
    return [dot(row, x) + b for row, b in zip(layer.weight.tolist(), bias, strict=True)]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def softmax(energies: Vector) -> Vector:
    return [math.exp(log_share) for log_share in log_softmax(energies)]


def log_softmax(logits: Vector) -> Vector:
    """Also of logits that are minus infinity."""
    largest = max(logits)
    total = largest + math.log(sum(math.exp(logit - largest) for logit in logits))
    return [logit - total for logit in logits]


def expectation(shares: Vector, vectors: list[Vector]) -> Vector:
    return [
        sum(share * value for share, value in zip(shares, column, strict=True))
        for column in zip(*vectors, strict=True)
    ]


def mean(vectors: list[Vector]) -> Vector:
    return expectation([1 / len(vectors)] * len(vectors), vectors)


def part(vector: Vector, number: int, parts: int) -> Vector:
    """One of several parts of the same size."""
    size = len(vector) // parts
    return vector[number * size : (number + 1) * size]


def lstm(gates: Vector, c: Vector) -> tuple[Vector, Vector]:
    """h and c from the sums for the gates i, f, o and g, and the last c: equations 1 to 3."""
    i, f, o, g = (part(gates, number, 4) for number in range(4))
    c = [
        sigmoid(forget) * last + sigmoid(write) * math.tanh(new)
        for forget, last, write, new in zip(f, c, i, g, strict=True)
    ]
    return [sigmoid(show) * math.tanh(cell) for show, cell in zip(o, c, strict=True)], c
