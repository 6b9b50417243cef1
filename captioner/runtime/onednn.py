"""Weights in the order in which oneDNN, PyTorch's library for convolutions, reads them."""

from __future__ import annotations

import platform
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn


class Packs(nn.Module):
    """A layer that can keep its weight in oneDNN's order, too, for inference on a CPU.

    Ordering it anew in every call takes longer than multiplying the few rows of a search's step.
    The layer computes plainly where gradients are asked for, on another device, in another type,
    and once its weight has changed (but by `weight.data`, in place, which leaves no trace).
    """

    weight: Tensor
    _packed: Any = None
    _packed_of: tuple[object, ...] | None = None

    @abstractmethod
    def ordered(self) -> Any:
        """The weight in oneDNN's order."""

    def pack(self) -> None:
        """Where oneDNN can read it; else the layer goes on as it is."""
        if orders(self.weight):
            self._packed, self._packed_of = self.ordered(), trace_of(self.weight)

    def is_packed(self, x: Tensor) -> bool:
        """Whether what is packed can be read for this input."""
        return (
            self._packed is not None
            and not torch.is_grad_enabled()
            and x.dtype == self.weight.dtype
            and reads(x)
            and trace_of(self.weight) == self._packed_of
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_packed": None}  # which cannot be copied

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._packed_of is not None:
            self.pack()


def reads(x: Tensor) -> bool:
    """Whether oneDNN can be handed this input directly."""
    return (
        x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()  # which cannot look into oneDNN's tensors
    )


def orders(weight: Tensor) -> bool:
    """Whether oneDNN has an order of its own for this weight here, as on x86 alone."""
    return (
        weight.device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and platform.machine() in ("x86_64", "AMD64")
        and (
            weight.dtype == torch.float32
            or (weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
        )
    )


def trace_of(tensor: Tensor) -> tuple[object, ...]:
    """What is another when a tensor's values are others."""
    version = None if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), version, tensor.dtype, tensor.device
