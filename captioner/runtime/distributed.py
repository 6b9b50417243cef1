"""Values that the processes of a training run exchange; identities in a single process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

Result = TypeVar("Result")


def world_size() -> int:
    """Return the number of processes of the run."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, from 0; process 0 writes, logs and reports."""
    return dist.get_rank() if dist.is_initialized() else 0


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
