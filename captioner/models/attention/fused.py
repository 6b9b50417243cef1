"""The additive score as one kernel of a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from captioner.errors import error_summary
from captioner.log import logger
from captioner.runtime.device import at_least_float32

FEW = 32  # images; to search for so few, starting the compiler takes longer than it saves


def additive_scores(queries: Tensor, keys: Tensor, weight: Tensor) -> Tensor:
    """Compare as `AdditiveScore.compare` does, summing in float32; weight is [heads, 1, 1, a]."""
    hidden = at_least_float32(keys.unsqueeze(2) + 2 * queries.unsqueeze(3)).sigmoid()
    weight = at_least_float32(weight)
    return 2 * (hidden * weight).sum(-1) - weight.sum(-1)


def fused_scores(keys: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """Return `additive_scores` as one kernel; None where it is not to be had or does not pay."""
    if torch.compiler.is_compiling():  # fused with the rest of the step
        return additive_scores
    if len(keys) <= FEW and torch.is_inference_mode_enabled():  # samples are training
        return None
    return compiled_additive_scores()


@functools.cache
def compiled_additive_scores() -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """Return `additive_scores` as one GPU kernel, which never writes `hidden` to memory.

    None where kernels cannot be compiled, for want of Triton or a C compiler.
    """
    if not torch.cuda.is_available():
        return None
    try:
        torch.compile(torch.sin)(torch.zeros(2, device="cuda"))
    except RuntimeError as error:
        reason = error_summary(error, part="line")
        logger.info(f"attention.score additive is slower for want of a compiler ({reason})")
        return None
    # The default, 8, is too few for a self-critical run with its validations.
    torch._dynamo.config.recompile_limit = 64
    return torch.compile(additive_scores)
