"""A linear layer for a loop over words, whose weight gets its gradient once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class StepLinear(nn.Linear):
    """nn.Linear, to be called at every step of a loop.

    Each call of a plain layer adds a matrix of the weight's size to its gradient, from the few
    rows of one step: on a CPU that was half of a training step (docs/performance.md). Inside
    `gradients_at_once` the rows of all steps are kept instead, and make one product in the end.
    """

    _shared: Tensor | None = None
    _rows: list[tuple[Tensor, Tensor]] | None = None

    def forward(self, rows: Tensor) -> Tensor:
        if self._shared is None:
            return super().forward(rows)
        outputs = functional.linear(rows, self.weight.detach(), self.bias)
        return _Keep.apply(outputs, rows.detach(), self._shared, self._rows)


@contextmanager
def gradients_at_once(module: nn.Module) -> Iterator[None]:
    """For one forward pass: each StepLinear below `module` takes its weight's gradient at once."""
    layers = [
        layer
        for layer in module.modules()
        if isinstance(layer, StepLinear) and layer.weight.requires_grad
    ]
    if not torch.is_grad_enabled():
        layers = []
    try:
        for layer in layers:
            layer._rows = []
            layer._shared = _Weight.apply(layer.weight, layer._rows)
        yield
    finally:
        for layer in layers:
            layer._shared = layer._rows = None


class _Weight(torch.autograd.Function):
    """The weight, whose gradient waits for those of all steps (they are its consumers)."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, rows: list[tuple[Tensor, Tensor]]) -> Tensor:
        ctx.rows = rows
        ctx.set_materialize_grads(False)
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, nothing: Tensor | None) -> tuple[Tensor | None, None]:
        if not ctx.rows:
            return None, None
        inputs, gradients = zip(*ctx.rows, strict=True)
        ctx.rows.clear()
        gradient = torch.cat(gradients)
        return gradient.t() @ torch.cat(inputs).to(gradient.dtype), None


class _Keep(torch.autograd.Function):
    """The outputs of a step; backward keeps the rows that went in and the gradient that came."""

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, inputs: Tensor, weight: Tensor, rows: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.rows = rows
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (inputs,) = ctx.saved_tensors
        ctx.rows.append((inputs.flatten(0, -2), gradient.flatten(0, -2)))
        return gradient, None, None, None
