"""CUDA graphs as they behave, on the CPU: a replay runs no Python, and reads and writes the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from captioner.runtime.cuda_graphs import GraphCache

# They wait for the device, or copy from the CPU, or have shapes that depend on values.
REFUSED = (
    *("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::is_nonzero"),
    *("aten::equal", "aten::_unique2", "aten::bincount", "aten::repeat_interleave.Tensor"),
)

HARD = {"attention__select": "hard"}
# What models and their searches and steps in fixed shapes may differ in, for tiny.recipe.
KINDS: dict[str, dict[str, object]] = {
    "soft": {},
    "hard": HARD,
    "luong": {"decoder__kind": "luong", "attention__window": "local_p"},
    "top down": {"decoder__kind": "top_down", "attention__window": "local_m"},
    "mean": {"decoder__kind": "mean"},
    "transformer": {"decoder__kind": "transformer", "decoder__heads": 2},
    "hard transformer": {**HARD, "decoder__kind": "transformer", "attention__heads": 2},
    "heads": {"attention__heads": 2, "encoder__self_attention_layers": 1},
    "location": {"attention__score": "location", "decoder__gate": "vector"},
}


class RecordedOperations(TorchDispatchMode):
    """In place of a `torch.cuda.CUDAGraph`: the operations that are called in its context.

    As a GPU does, it leaves all values as they were before it is replayed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.overwritten: list[tuple[Tensor, Tensor]] = []
        self.replays = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.name(), kwargs or {}
        masked = name == "aten::index.Tensor" and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        copied = name == "aten::lift_fresh" and args[0].dim() > 0  # a scalar is passed to a kernel
        if masked or copied or name in REFUSED:
            raise RuntimeError(f"{name} cannot be recorded in a graph")
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = [x for x in tree_flatten(value)[0] if isinstance(x, Tensor)]
                self.overwritten += [(x, x.clone()) for x in written]
        result = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, result))
        return result

    def record(self, function: Callable[[], Any]) -> Any:
        """Return the function's result, which each replay overwrites."""
        state = torch.get_rng_state()
        with self:
            result = function()
        for tensor, before in reversed(self.overwritten):
            tensor.detach().copy_(before)
        self.overwritten.clear()
        torch.set_rng_state(state)
        return result

    def replay(self) -> None:
        """Compute the same operations again, in the same memory."""
        self.replays += 1
        with torch.no_grad():
            for func, args, kwargs, result in self.calls:
                new = tree_flatten(func(*args, **kwargs))[0]
                for one, other in zip(new, tree_flatten(result)[0], strict=True):
                    if isinstance(one, Tensor) and one.data_ptr() != other.data_ptr():
                        other.copy_(one)


class CPUGraphs(GraphCache):
    """A `GraphCache` of such graphs."""

    def __init__(self) -> None:
        super().__init__(record=False)
        self.record = True

    def warm_up(self, function: Callable[[], Any]) -> Any:
        return function()

    def record_graph(self, function: Callable[[], Any]) -> Any:
        graph = RecordedOperations()
        return graph, graph.record(function)
