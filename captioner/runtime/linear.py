"""Linear layers: by the faster library, and with one gradient for all steps of a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from captioner.runtime.onednn import Packs, reads

WORTH_IT = 4 * 10**6  # multiplications; below, moving the numbers over costs more than it saves


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """functional.linear; in float32 on a CPU by oneDNN where PyTorch's own library is slow."""
    if rows.numel() * len(weight) < WORTH_IT or not _for_onednn(rows, weight):
        return functional.linear(rows, weight, bias)
    if not torch.is_grad_enabled():
        return _by_onednn(rows, weight, bias)
    outputs: Tensor = torch.ops.aten.mkldnn_linear(rows.contiguous().to_mkldnn(), weight, bias)
    return outputs.to_dense()


def _for_onednn(rows: Tensor, weight: Tensor) -> bool:
    return rows.dtype == weight.dtype == torch.float32 and reads(rows) and _blas_is_slow()


def _by_onednn(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Without a gradient, and so without copies into oneDNN's tensors and back."""
    outputs: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return outputs


@cache
def _blas_is_slow() -> bool:
    """Whether this is an AMD processor with AVX-512 and PyTorch multiplies by MKL.

    MKL leaves AVX-512 unused on processors that are not Intel's. oneDNN, which comes with PyTorch
    for convolutions, was two to two and a half times as fast (docs/performance.md).
    """
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return False
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


class Linear(Packs, nn.Linear):
    """nn.Linear by `linear`."""

    def ordered(self) -> Tensor:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach())
        return packed

    def forward(self, rows: Tensor) -> Tensor:
        if self.is_packed(rows):
            return _by_onednn(rows, self._packed, self.bias)
        return linear(rows, self.weight, self.bias)


def pack_linear_layers(module: nn.Module) -> None:
    """For inference, where oneDNN multiplies faster."""
    for layer in module.modules():
        if isinstance(layer, Linear) and _for_onednn(layer.weight, layer.weight):
            layer.pack()


class StepLinear(Linear):
    """A Linear to be called at every step of a loop.

    Each call of a plain layer adds a matrix of the weight's size to its gradient, from the few
    rows of one step. Inside `gradients_at_once` the rows of all steps are kept instead, and make
    one product in the end.
    """

    _shared: Shared | None = None

    def forward(self, rows: Tensor) -> Tensor:
        if self._shared is None:
            return super().forward(rows)
        outputs = linear(rows, self._shared.detached)
        if self.bias is not None:  # apart: oneDNN would make the weight's gradient with its own
            outputs = outputs + self.bias.to(outputs.dtype)
        return self._shared.keep(outputs, rows)


@contextmanager
def gradients_at_once(module: nn.Module) -> Iterator[None]:
    """For one forward pass: each StepLinear below `module` takes its weight's gradient at once.

    For one backward pass, too, that reaches the weights: gradients with respect to the inputs alone
    and then a second pass through the same graph would count the rows twice.
    """
    layers = [
        layer
        for layer in module.modules()
        if isinstance(layer, StepLinear) and layer.weight.requires_grad
    ]
    if not torch.is_grad_enabled():
        layers = []
    try:
        for layer in layers:
            layer._shared = Shared(layer.weight, _weight_gradient)
        yield
    finally:
        for layer in layers:
            layer._shared = None


def _weight_gradient(inputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    gradient = torch.cat([rows.flatten(0, -2) for rows in gradients])
    rows = torch.cat([rows.flatten(0, -2) for rows in inputs])
    return linear(gradient.t(), rows.to(gradient.dtype).t())


Combine = Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]


class Shared:
    """A tensor that every step of a loop multiplies by, and whose gradient is made in the end.

    A step multiplies by `detached`, and gives what it got and what it multiplied to `keep`.
    combine: the gradient, of the steps' inputs and the gradients of their outputs.
    """

    def __init__(self, tensor: Tensor, combine: Combine) -> None:
        self.detached = as_autocast_would(tensor.detach())
        self._steps: list[tuple[Tensor, Tensor]] = []
        self._tensor: Tensor = _Wait.apply(tensor, self._steps, combine)

    def keep(self, outputs: Tensor, inputs: Tensor) -> Tensor:
        """The outputs, through which the gradient of the tensor will be known."""
        kept: Tensor = _Keep.apply(outputs, inputs.detach(), self._tensor, self._steps)
        return kept


def as_autocast_would(tensor: Tensor) -> Tensor:
    """Cast once; autocast itself remembers only casts of what needs a gradient."""
    kind = tensor.device.type
    if not torch.is_autocast_enabled(kind) or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))


class _Wait(torch.autograd.Function):
    """The tensor, whose gradient waits for those of all steps (they are its consumers)."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, steps: list[tuple[Tensor, Tensor]], combine: Combine
    ) -> Tensor:
        ctx.steps, ctx.combine = steps, combine
        ctx.set_materialize_grads(False)
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, nothing: Tensor | None) -> tuple[Tensor | None, None, None]:
        if not ctx.steps:
            return None, None, None
        inputs, gradients = zip(*ctx.steps, strict=True)
        ctx.steps.clear()
        return ctx.combine(inputs, gradients), None, None


class _Keep(torch.autograd.Function):
    """The outputs of a step; backward keeps the inputs and the gradient that came."""

    @staticmethod
    def forward(
        ctx: Any,
        outputs: Tensor,
        inputs: Tensor,
        tensor: Tensor,
        steps: list[tuple[Tensor, Tensor]],
    ) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.steps = steps
        return outputs.view_as(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (inputs,) = ctx.saved_tensors
        ctx.steps.append((inputs, gradient))
        return gradient, None, None, None
