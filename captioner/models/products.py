"""Matrix products of training: one gradient for all steps, and oneDNN in place of MKL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Steps: TypeAlias = list[tuple[Tensor, Tensor]]  # the input, and the gradient of the output

_by_onednn: ContextVar[bool] = ContextVar("by_onednn", default=False)


@contextmanager
def onednn_products() -> Iterator[None]:
    """Have oneDNN compute linear layers in float32 on the CPU, forward and backward."""
    token = _by_onednn.set(True)
    try:
        with _Linear():
            yield
    finally:
        _by_onednn.reset(token)


class _Linear(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return (_linear if func is functional.linear else func)(*args, **(kwargs or {}))


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `functional.linear`; inside `onednn_products` by oneDNN, where that pays."""
    if (
        not _by_onednn.get()
        or inputs.dtype != torch.float32
        or inputs.is_mkldnn  # this function's own call
        or len(weight) == 1  # to copy the inputs would take as long
        or torch.is_autocast_enabled("cpu")
        or torch.compiler.is_compiling()
    ):
        return functional.linear(inputs, weight, bias)
    return functional.linear(inputs.to_mkldnn(), weight, bias).to_dense()


def shared_gradients() -> AbstractContextManager[object]:
    """Return a context for the steps of a recurrent network.

    What all steps multiply by, weights of linear layers and values of attention, gets its gradient
    from one product. Otherwise there is a thin product for each step, as large as the whole tensor,
    and it is added to those of the other steps.
    """
    pays = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return _SharedGradients() if pays else nullcontext()


class _SharedGradients(TorchFunctionMode):
    """Replaces `functional.linear` and `torch.matmul`, but not the operator @."""

    def __init__(self) -> None:
        super().__init__()
        # By id: the tensor itself, as else its id could become that of another; what steps take.
        self.shared: dict[int, tuple[Tensor, Tensor, Tensor, Steps]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func not in (torch.matmul, functional.linear) or not args[1].requires_grad:
            return func(*args, **(kwargs or {}))
        inputs, shared, bias = (*args, (kwargs or {}).get("bias"))[:3]
        if func is torch.matmul and shared.dim() > 2:
            return self._product(inputs, shared)
        if func is torch.matmul or inputs.numel() > shared.numel():  # all inputs take more memory
            return func(*args, **(kwargs or {}))
        output = self._product(inputs.flatten(0, -2), shared).unflatten(0, inputs.shape[:-1])
        return output if bias is None else output + bias

    def _product(self, inputs: Tensor, shared: Tensor) -> Tensor:
        """Return inputs [..., n, m] times values [..., m, k], or a weight [k, m] transposed."""
        device = inputs.device.type
        if torch.is_autocast_enabled(device) and inputs.dtype != torch.float64:
            inputs = inputs.to(torch.get_autocast_dtype(device))
        if id(shared) not in self.shared:
            steps: Steps = []
            made = _Shared.apply(shared.to(inputs.dtype), steps)
            transposed = made.detach().mT
            if _by_onednn.get() and shared.dim() == 2 and made.dtype == torch.float32:
                transposed = transposed.contiguous()  # it is slow to turn a weight at each step
            self.shared[id(shared)] = shared, made, transposed, steps
        return _Product.apply(inputs, *self.shared[id(shared)][1:])


class _Shared(torch.autograd.Function):
    """The tensor itself. Its gradient is made of the steps that have gone backward before it."""

    @staticmethod
    def forward(ctx: Any, shared: Tensor, steps: Steps) -> Tensor:
        ctx.steps, ctx.is_weight = steps, shared.dim() == 2
        ctx.set_materialize_grads(False)
        return shared.view_as(shared)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: None) -> tuple[Tensor, None]:
        inputs, gradients = (torch.cat(parts, -2) for parts in zip(*ctx.steps, strict=True))
        ctx.steps.clear()
        if ctx.is_weight:
            return _linear(gradients.mT, inputs.mT), None
        return inputs.mT @ gradients, None


class _Product(torch.autograd.Function):
    """A product that leaves the gradient of its second factor to `_Shared`."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, shared: Tensor, transposed: Tensor, steps: Steps
    ) -> Tensor:
        ctx.steps = steps
        ctx.save_for_backward(inputs, transposed)
        return _linear(inputs, shared) if shared.dim() == 2 else inputs @ shared

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        inputs, transposed = ctx.saved_tensors
        ctx.steps.append((inputs.detach(), gradient))  # no cycle, if an error ends the pass
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        is_weight = transposed.dim() == 2
        gradient = _linear(gradient, transposed) if is_weight else gradient @ transposed
        return gradient, None, None, None
