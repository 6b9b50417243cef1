"""Gradients that the processes of a training run exchange."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from captioner.runtime.distributed import world_size


def distributed_data_parallel(module: nn.Module, *, compress: bool = False) -> Any:
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
    """Replace gradients by their mean over the processes, exchanged in bfloat16 if `compress`."""
    if world_size() == 1:
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    joined = torch.cat([gradient.flatten() for gradient in gradients]) / world_size()
    joined = joined.bfloat16() if compress else joined
    dist.all_reduce(joined)
    means = joined.split([gradient.numel() for gradient in gradients])
    pairs = zip(means, gradients, strict=True)
    torch._foreach_copy_(gradients, [mean.view_as(gradient) for mean, gradient in pairs])
