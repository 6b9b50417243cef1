"""A pretended GPU: tensors that are computed on the CPU, but refuse what a GPU would refuse.

PyTorch's own fake tensors have no values, without which no search ends; these have them. A tensor
"on cuda" is a `Pretended`. It meets tensors of the CPU in an error, as on a GPU, unless these are
scalars; and each time that a value of it is read, the place of the program that waits is noted.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

CUDA = torch.device("cuda", 0)
# Functions that copy between devices, or take lengths and places from the CPU.
PACKING = ("_pack_padded_sequence", "_pad_packed_sequence", "lstm", "gru")
MIXING = {"__getitem__", "__setitem__", "copy_", "to", "backward", *PACKING}
READING = {
    *("item", "tolist", "__bool__", "__float__", "__int__", "__index__", "numpy", "__array__"),
    *("cpu", "nonzero", "masked_select", "unique", "is_nonzero", "equal", "allclose", "argwhere"),
}


class Pretended(torch.Tensor):
    """A tensor on the pretended GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied: Tensor = self.detach().clone().as_subclass(Pretended)
        if isinstance(self, nn.Parameter):
            copied = nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied
        return copied


class PretendedGPU(TorchFunctionMode):
    """Context in which the device `cuda` is there.

    Attributes:
        waits: For each place of captioner, `file:function`, how often it waited for a value.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        owner = getattr(getattr(func, "__self__", None), "__name__", "")  # of a property
        values = tree_flatten((args, kwargs))[0]
        tensors = [value for value in values if isinstance(value, Tensor)]
        there = any(isinstance(tensor, Pretended) for tensor in tensors)
        if name == "__get__" and owner in ("device", "is_cuda", "is_cpu"):
            if there:
                return {"device": CUDA, "is_cuda": True, "is_cpu": False}[owner]
            return func(*args, **kwargs)
        asked = [d for d in values if _is_device(d)]
        goes_to_gpu = any(torch.device(d).type == "cuda" for d in asked)
        comes_back = there and (name == "cpu" or (bool(asked) and not goes_to_gpu))
        strangers = [t for t in tensors if t.dim() and not isinstance(t, Pretended)]
        if there and strangers and name not in MIXING:
            raise RuntimeError(f"{name}: expected all tensors on one device, found cuda and cpu")
        if name == "__getitem__" and tensors and not isinstance(tensors[0], Pretended) and there:
            raise RuntimeError("an index on cuda for a tensor on the cpu")
        masked = name in ("__getitem__", "__setitem__") and any(
            isinstance(t, Pretended) and t.dtype == torch.bool for t in tree_flatten(args[1])[0]
        )
        writes_number = there and name == "__setitem__" and not isinstance(args[2], Tensor)
        if writes_number and not masked and _has_tensor(args[1]):
            raise RuntimeError("a number is copied to cuda for each use, which no graph holds")
        if there and (name in READING or comes_back or (masked and name == "__getitem__")):
            self._note()
        if goes_to_gpu:
            args, kwargs = tree_map(lambda v: "cpu" if _is_device(v) else v, (args, kwargs))
        result = func(*args, **kwargs)
        if comes_back:
            return _map(lambda t: t.as_subclass(Tensor), result)
        if there and name == "_pack_padded_sequence":  # its counts stay on the CPU
            return result[0].as_subclass(Pretended), result[1]
        if (there or goes_to_gpu) and name not in ("numpy", "__array__"):
            result = _map(_pretended, result)
        return result

    def _note(self) -> None:
        frame = sys._getframe(2)
        # These sort tensors by the device that C++ sees.
        if frame.f_code.co_filename.endswith(("clip_grad.py", "adam.py")):
            return
        while "/captioner/" not in frame.f_code.co_filename and frame.f_back is not None:
            frame = frame.f_back
        file = frame.f_code.co_filename.rpartition("/captioner/")[2]
        self.waits[f"{file}:{frame.f_code.co_name}"] += 1


def move(module: nn.Module) -> None:
    """Put what a module has registered on the pretended GPU, as `module.to` does."""
    for part in module.modules():
        for name, value in part._parameters.items():
            if value is not None:
                there = nn.Parameter(value.detach().as_subclass(Pretended), value.requires_grad)
                part._parameters[name] = there
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = buffer.as_subclass(Pretended)


def _has_tensor(index: Any) -> bool:
    return any(isinstance(part, Tensor) for part in tree_flatten(index)[0])


def _is_device(value: object) -> bool:
    return isinstance(value, torch.device) or (
        isinstance(value, str) and value.partition(":")[0] in ("cuda", "cpu")
    )


def _pretended(tensor: Tensor) -> Tensor:
    return tensor if isinstance(tensor, Pretended) else tensor.as_subclass(Pretended)


def _map(function: Any, result: Any) -> Any:
    return tree_map(lambda v: function(v) if isinstance(v, Tensor) else v, result)
