"""EfficientNet-Lite for inference: the same function in fewer passes over memory."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import fuse_conv_bn_weights

from captioner.models.backbones.backbone import Backbone
from captioner.models.backbones.efficientnet_lite import BatchNormReLU6, SameConv
from captioner.runtime.onednn import Packs, orders, trace_of

# Until then the feature maps of one photo (9 MB the largest, at 320 px) fill a core's share of the
# cache, and those of a batch would be written to memory and read back by every layer.
PHOTO_BY_PHOTO = ["stem", "blocks.0", "blocks.1", "blocks.2"]


def fold_batch_norms(module: nn.Module) -> None:
    """Convolutions take the batch norms behind them into their weights, in place.

    The same function but for the last bits of its numbers; it can no longer be trained. Networks
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


def fuse_for_cpu(module: nn.Module) -> None:
    """After `fold_batch_norms`, on a CPU with oneDNN: FusedConv for each convolution, in place.

    The same function but for the last bits, and the wide first stages take one photo after another.
    An encoder whose weights are not finite stays as it is: oneDNN's ReLU6 makes zeros of what is
    not a number, and nobody would notice. So does one that oneDNN cannot compute.
    """
    found = [
        (parent, first, conv, second, isinstance(behind, nn.ReLU6))
        for parent, (first, conv), (second, behind) in _neighbours(module)
        if isinstance(conv, SameConv) and isinstance(behind, (nn.ReLU6, nn.Identity))
    ]
    if not all(orders(conv.weight) and _finite(conv) for _, _, conv, _, _ in found):
        return
    for parent, first, conv, second, relu6 in found:
        setattr(parent, first, FusedConv(conv, relu6=relu6))
        setattr(parent, second, nn.Identity())
    for backbone in module.modules():
        if isinstance(backbone, Backbone) and found:
            backbone.photo_by_photo = sum(name in PHOTO_BY_PHOTO for name in backbone.names)


class FrozenStages:
    """The first stages of a backbone, which training leaves as they are, made for inference.

    A copy, and anew when their weights, their device or the type to compute in are others. Under
    autocast it computes in autocast's type.
    """

    def __init__(self, backbone: Backbone, count: int) -> None:
        self.backbone, self.count = backbone, count
        self._copy = backbone
        self._of: object = None

    @torch.no_grad()
    def __call__(self, photos: Tensor) -> Tensor:
        """Photos [B, 3, H, W] to the feature map of the last of these stages."""
        stages = self.backbone.stages[: self.count]
        if not any(
            type(conv) is SameConv and (conv.bias is None or orders(conv.weight))
            for conv in stages.modules()
        ):  # nothing to fold or to fuse, or no longer
            return self.backbone(photos, stop=self.count)
        kind, weights = photos.device.type, [*stages.parameters(), *stages.buffers()]
        rough = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if rough else weights[0].dtype
        of = (dtype, [trace_of(weight) for weight in weights])
        if of != self._of:
            self._copy, self._of = self._made(stages, dtype), of
        with torch.autocast(kind, enabled=False) if rough else nullcontext():
            return self._copy(photos.to(dtype))

    def _made(self, stages: nn.ModuleList, dtype: torch.dtype) -> Backbone:
        own = self.backbone
        named = list(zip(own.names, copy.deepcopy(stages), strict=False))
        backbone = Backbone(named, channels=own.channels, preprocessing=own.preprocessing).eval()
        fold_batch_norms(backbone)
        backbone.to(dtype)
        fuse_for_cpu(backbone)
        return backbone


class FusedConv(Packs, SameConv):
    """A SameConv and the ReLU6 behind it in one pass over memory, for inference on a CPU.

    What SameConv pads right and below, where it takes every second place, comes from padding on all
    sides, and from zeros before the kernel where that is too much: no padded copy is made.
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
        self.pack()

    def ordered(self) -> dict[tuple[int, int], Tensor]:
        """By whether height and width are even."""
        parities = (0,) if self.stride[0] == 1 else (0, 1)
        return {
            (height, width): torch.ops.mkldnn._reorder_convolution_weight(
                functional.pad(self.weight.detach(), (width, 0, height, 0)), *self._geometry()
            )
            for height in parities
            for width in parities
        }

    def _geometry(self) -> tuple[list[int], list[int], list[int], int]:
        """Padding, stride, dilation, groups."""
        return [self.kernel_size[0] // 2] * 2, list(self.stride), [1, 1], self.groups

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_packed(x):
            plain = super().forward(x)
            return functional.relu6(plain) if self.relu6 else plain
        even = (0, 0)
        if self.stride[0] == 2:
            even = (int(x.shape[2] % 2 == 0), int(x.shape[3] % 2 == 0))
        behind = ("hardtanh", [0.0, 6.0], "") if self.relu6 else ("none", [], "")
        output: Tensor = torch.ops.mkldnn._convolution_pointwise(
            x, self._packed[even], self.bias, *self._geometry(), *behind
        )
        return output


def _neighbours(
    module: nn.Module,
) -> Iterator[tuple[nn.Module, tuple[str, nn.Module], tuple[str, nn.Module]]]:
    """Each two modules that follow each other in a third, with their names in it."""
    for parent in list(module.modules()):
        for one, next_one in itertools.pairwise(list(parent.named_children())):
            yield parent, one, next_one


def _finite(module: nn.Module) -> bool:
    return all(bool(parameter.isfinite().all()) for parameter in module.parameters())
