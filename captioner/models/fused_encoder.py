"""EfficientNet-Lite for inference: the same function in fewer passes over memory.

The functions change modules in place: callers pass copies of their own (`model.py`).
"""

from __future__ import annotations

import itertools
import platform
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import fuse_conv_bn_weights

from captioner.models.backbones.efficientnet_lite import BatchNormReLU6, SameConv

# In the first stages (stem, blocks.0 to blocks.2) the feature maps of one image (9 MB the largest,
# at 320 px) fill a core's share of the cache; those of a batch would be written to memory and read
# back by every layer.
WIDE_STAGES = 4


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


class FusedConv(SameConv):
    """A SameConv and the ReLU6 behind it as one call of oneDNN, for inference on a CPU.

    The weight is kept in oneDNN's own order too. The layer computes plainly where gradients are
    needed, on another device, in another type, and once its weight has changed.

    SameConv pads right and below with stride 2. Here the padding is on all sides, and a zero row
    and column in front of the kernel make up for it where needed, without a padded copy.
    """

    def __init__(self, conv: SameConv, *, relu6: bool) -> None:
        kernel, stride = conv.kernel_size[0], conv.stride[0]
        assert kernel % 2
        assert stride in (1, 2)
        with torch.device("meta"):  # the weights are the other's
            super().__init__(
                conv.in_channels, conv.out_channels, kernel, stride=stride, groups=conv.groups
            )
        self.weight, self.bias = conv.weight, conv.bias
        self.relu6 = relu6
        self._geometry = [kernel // 2] * 2, [stride] * 2, [1, 1], self.groups
        self.pack()

    def pack(self) -> None:
        """Keep the weight in oneDNN's order, by whether height and width are even."""
        self._packed_version = version_of(self.weight)
        parities = (0,) if self.stride[0] == 1 else (0, 1)
        self._packed = {
            (height, width): torch.ops.mkldnn._reorder_convolution_weight(
                F.pad(self.weight.detach(), (width, 0, height, 0)), *self._geometry
            )
            for height in parities
            for width in parities
            if onednn_can_pack(self.weight)
        }

    def forward(self, x: Tensor) -> Tensor:
        if (
            not self._packed
            or torch.is_grad_enabled()
            or x.dtype != self.weight.dtype
            or x.device.type != "cpu"
            or torch.is_autocast_enabled("cpu")
            or torch.compiler.is_compiling()
            or version_of(self.weight) != self._packed_version
        ):
            plain = super().forward(x)
            return F.relu6(plain) if self.relu6 else plain
        even = (0, 0)
        if self.stride[0] == 2:
            even = (int(x.shape[2] % 2 == 0), int(x.shape[3] % 2 == 0))
        activation = ("hardtanh", [0.0, 6.0], "") if self.relu6 else ("none", [], "")
        return torch.ops.mkldnn._convolution_pointwise(
            x, self._packed[even], self.bias, *self._geometry, *activation
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_packed": {}}  # oneDNN's tensors cannot be copied

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.pack()


class OneByOne(nn.Sequential):
    """Applies its layers to one image after another, so that feature maps stay in the cache."""

    def forward(self, images: Tensor) -> Tensor:
        layers = super().forward
        return torch.cat([layers(image) for image in images.split(1)])


def version_of(tensor: Tensor) -> tuple[object, ...]:
    """Return a key that changes with a tensor's values, device or type.

    In-place changes through `tensor.data` leave no trace.
    """
    version = None if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), version, tensor.dtype, tensor.device


def onednn_can_pack(weight: Tensor) -> bool:
    """Return whether oneDNN has its own order for this weight here: on x86 alone."""
    return (
        weight.device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and platform.machine() in ("x86_64", "AMD64")
        and (
            weight.dtype == torch.float32
            or (weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
        )
    )


def can_be_fused(module: nn.Module) -> bool:
    """Return whether folding or fusing would still change a convolution of this module."""
    return any(
        type(conv) is SameConv and (conv.bias is None or onednn_can_pack(conv.weight))
        for conv in module.modules()
    )
