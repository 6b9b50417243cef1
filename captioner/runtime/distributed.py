"""What the processes of a training run exchange in a step; identities in a single process."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

Result = TypeVar("Result")


def world_size() -> int:
    """Return the number of processes of the run."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, from 0; process 0 writes, logs and reports."""
    return dist.get_rank() if dist.is_initialized() else 0


def parallel(module: nn.Module, *, compress: bool = False) -> Any:
    """Return a module whose backward pass takes the mean gradient of all processes.

    Parameters that a process does not use count as zero there, as when it has no caption of a
    batch. That also keeps the buckets of the exchange as they are: rebuilt after the first step,
    they would let processes add in another order, and a resumed run would differ in the last bits.

    Args:
        compress: Exchange gradients in bfloat16: half the bytes, 8 bits of precision.
    """
    if world_size() == 1:
        return module
    warnings.filterwarnings("ignore", "find_unused_parameters=True was specified")
    ddp = DistributedDataParallel(module, find_unused_parameters=True)
    if compress:
        ddp.register_comm_hook(None, bf16_compress_hook)
    return ddp


def average_gradients(parameters: Iterable[nn.Parameter], *, compress: bool = False) -> None:
    """Replace gradients by their mean over the processes; `compress` as in `parallel`."""
    if world_size() == 1:
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    joined = torch.cat([gradient.flatten() for gradient in gradients]) / world_size()
    joined = joined.bfloat16() if compress else joined
    dist.all_reduce(joined)
    means = joined.split([gradient.numel() for gradient in gradients])
    pairs = zip(means, gradients, strict=True)
    torch._foreach_copy_(gradients, [mean.view_as(gradient) for mean, gradient in pairs])


def mean_over_processes(value: Tensor) -> Tensor:
    """Return the mean of a tensor over the processes, without a graph."""
    value = value.detach()
    if world_size() == 1:
        return value
    total = value.clone()
    dist.all_reduce(total)
    return total / world_size()


def from_all(value: Result) -> list[Result]:
    """Return the value of each process."""
    values: list[Any] = [value] * world_size()
    if world_size() > 1:
        dist.all_gather_object(values, value)
    return values


def mean_by_name(values: Mapping[str, float]) -> dict[str, float]:
    """Return the mean over the processes of each value; one that a process lacks counts as 0."""
    given = from_all(dict(values))
    names = dict.fromkeys(name for each in given for name in each)
    return {name: sum(each.get(name, 0.0) for each in given) / len(given) for name in names}
