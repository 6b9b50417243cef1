"""CUDA graphs: kernels of fixed shapes that are recorded once and then started together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from captioner.errors import error_summary
from captioner.log import logger

Result = TypeVar("Result")
DataclassT = TypeVar("DataclassT", bound=Any)


def graphs_of_search(device: torch.device) -> GraphCache | None:
    """Return the graphs for the search of one decoder on a GPU; None on a CPU."""
    if device.type != "cuda":
        return None
    return GraphCache(record=torch.cuda.is_available(), device=device)  # tests pretend to have one


class GraphCache:
    """Functions recorded as CUDA graphs at their second call, and replayed from then on.

    All graphs share one pool of memory: what a function returns is valid until it is replayed
    again, or another that was recorded before it.
    A function that cannot be recorded is called each time instead, with one sentence in the log.

    Args:
        record: Whether to record; if not, functions are called each time.
        device: The functions' GPU. It may be another than the thread's current one.

    Attributes:
        lock: For callers in several threads: graphs read and write the same memory.
    """

    def __init__(self, *, record: bool, device: torch.device | None = None) -> None:
        self.lock = threading.Lock()
        self.record = record
        if record:
            self.stream = torch.cuda.Stream(device)
        self.clear()

    def clear(self) -> None:
        """Forget all functions, and free their memory."""
        self.graphs: dict[object, tuple[torch.cuda.CUDAGraph, Any] | None] = {}
        self.called: set[object] = set()
        self.inputs: dict[object, Any] = {}
        if self.record:  # a pool whose graphs are all gone cannot be used again
            self.pool = torch.cuda.graph_pool_handle()

    def hold(self, key: object, value: DataclassT) -> DataclassT:
        """Return a copy of a dataclass whose tensors are always in the same memory.

        Graphs read from there: each call with the same key replaces what the last one left.
        """
        if not self.record:
            return value
        tensors = {name: x for name, x in vars(value).items() if isinstance(x, Tensor)}
        if key not in self.inputs:
            self.inputs[key] = replace(value, **{name: x.clone() for name, x in tensors.items()})
        else:
            for name, tensor in tensors.items():
                getattr(self.inputs[key], name).copy_(tensor, non_blocking=True)
        return self.inputs[key]

    def keep(self, key: object, make: Callable[[], Result]) -> Result:
        """Return what `make` returned at the first call with this key."""
        if key not in self.inputs:
            self.inputs[key] = make()
        return self.inputs[key]

    def run(self, key: object, function: Callable[[], Result], *, after: object = None) -> Result:
        """Call a function without arguments, or replay its graph.

        Args:
            after: Key of the function whose result this one reads. Unless that is replayed, its
                result is elsewhere each time, and this one is called, too.
        """
        if not self.record:
            return function()
        if key not in self.called:
            self.called.add(key)
            return self.warm_up(function)
        if key not in self.graphs:
            recordable = after is None or self.graphs.get(after) is not None
            self.graphs[key] = self.record_graph(function) if recordable else None
        if (recorded := self.graphs[key]) is None:
            return function()
        graph, output = recorded
        graph.replay()
        return output

    def warm_up(self, function: Callable[[], Result]) -> Result:
        """Call a function, which prepares libraries and state that a graph cannot hold."""
        current = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            result = function()
        current.wait_stream(self.stream)
        return result

    def record_graph(self, function: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any] | None:
        """Record a function; return its graph and its result, which each replay overwrites."""
        graph = torch.cuda.CUDAGraph()
        try:
            with (
                # again after a failure
                torch.cuda.stream(torch.cuda.current_stream(self.stream.device)),
                # thread_local: the thread that pins memory for the next batches may go on
                torch.cuda.graph(
                    graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"
                ),
            ):
                return graph, function()
        except RuntimeError as error:  # out of memory is one, too
            logger.warning(
                "a CUDA graph cannot be recorded "
                f"({error_summary(error, part='line')}), so its kernels are started one by one"
            )
            return None
