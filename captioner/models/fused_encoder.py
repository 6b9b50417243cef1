"""EfficientNet-Lite for inference: the same function in fewer passes over memory.

`fold_batch_norms` and `fuse_for_cpu` change modules in place: callers pass copies of their own.
"""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.utils import fuse_conv_bn_weights

from captioner.models.backbones.efficientnet_lite import (
    BatchNormReLU6,
    FusedConv,
    OneByOne,
    SameConv,
)
from captioner.runtime.device import onednn_can_pack

# In the first stages (stem, blocks.0 to blocks.2) the feature maps of one image (9 MB the largest,
# at 320 px) fill a core's share of the cache; those of a batch would be written to memory and read
# back by every layer.
WIDE_STAGES = 4


def fused_copy(stages: nn.Sequential, dtype: torch.dtype) -> nn.Module | None:
    """Return a copy of stages for inference in a type; None where nothing would be faster."""
    if not any(
        type(conv) is SameConv and (conv.bias is None or onednn_can_pack(conv.weight))
        for conv in stages.modules()
    ):
        return None
    fused = copy.deepcopy(stages).eval()
    fold_batch_norms(fused)
    fuse_for_cpu(fused.to(dtype))
    return fused


def fold_batch_norms(module: nn.Module) -> None:
    """Fold batch norms into the weights of the convolutions in front of them, in place.

    The function stays the same except for last bits; the module can no longer be trained. Networks
    other than EfficientNet-Lite are left as they are.
    """
    for parent, (_, conv), (name, norm) in _neighbours(module):
        if not (isinstance(conv, SameConv) and isinstance(norm, nn.BatchNorm2d)):
            continue
        assert norm.running_mean is not None
        assert norm.running_var is not None
        conv.weight, conv.bias = fuse_conv_bn_weights(
            conv.weight,
            conv.bias,
            norm.running_mean,
            norm.running_var,
            norm.eps,
            norm.weight,
            norm.bias,
        )
        relu = isinstance(norm, BatchNormReLU6)
        setattr(parent, name, nn.ReLU6(inplace=True) if relu else nn.Identity())


def fuse_for_cpu(stages: nn.Sequential) -> None:
    """Replace each convolution by FusedConv, in place, on a CPU with oneDNN.

    Call it after `fold_batch_norms`. The function stays the same except for last bits; the wide
    first stages take one image after another. An encoder with weights that are not finite stays as
    it is (oneDNN's ReLU6 turns NaN into zeros, and nobody would notice), and so does one that
    oneDNN cannot compute.
    """
    convolutions = [
        (parent, first, conv, second, isinstance(behind, nn.ReLU6))
        for parent, (first, conv), (second, behind) in _neighbours(stages)
        if isinstance(conv, SameConv) and isinstance(behind, (nn.ReLU6, nn.Identity))
    ]
    for _, _, conv, _, _ in convolutions:
        if not onednn_can_pack(conv.weight):
            return
        if not all(bool(parameter.isfinite().all()) for parameter in conv.parameters()):
            return
    for parent, first, conv, second, relu6 in convolutions:
        setattr(parent, first, FusedConv(conv, relu6=relu6))
        setattr(parent, second, nn.Identity())
    for index in range(min(WIDE_STAGES, len(stages))):
        if any(isinstance(layer, FusedConv) for layer in stages[index].modules()):
            stages[index] = OneByOne(OrderedDict(stages[index].named_children()))


def _neighbours(
    module: nn.Module,
) -> Iterator[tuple[nn.Module, tuple[str, nn.Module], tuple[str, nn.Module]]]:
    """Yield each module with two consecutive children of it, each with its name."""
    for parent in list(module.modules()):
        for one, next_one in itertools.pairwise(list(parent.named_children())):
            yield parent, one, next_one
