"""The layers of EfficientNet-Lite (Tan and Le, 2019; Google's "lite" variant of 2020).

Lite: no squeeze-and-excitation, and ReLU6. It is TensorFlow's network, so padding is TensorFlow's:
an odd row or column goes below or right. The fused layers at the end are for frozen stages and for
inference; `models/fused_encoder.py` puts them in.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.runtime.device import onednn_can_pack


class SameConv(nn.Conv2d):
    """A convolution without bias that gives ceil(size / stride), padded as TensorFlow pads."""

    def __init__(
        self, channels: int, out: int, kernel: int, *, stride: int = 1, groups: int = 1
    ) -> None:
        # With stride 1 the padding is the same on both sides, and the convolution's own is faster.
        padding = kernel // 2 if stride == 1 else 0
        super().__init__(channels, out, kernel, stride, padding, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.stride[0] > 1:
            kernel, stride = self.kernel_size[0], self.stride[0]
            down, right = (
                max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
                for size in x.shape[2:]
            )
            x = F.pad(x, (right // 2, right - right // 2, down // 2, down - down // 2))
        autocast = x.device.type == "cpu" and torch.is_autocast_enabled("cpu")
        if self.groups == 1 or not (autocast and torch.is_grad_enabled()):
            return super().forward(x)
        # Depthwise: on a CPU, its gradient in bfloat16 takes three times as long as in float32.
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.to(self.weight.dtype))


class BatchNormReLU6(nn.BatchNorm2d):
    """Batch normalisation, then ReLU6."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu6(super().forward(x), inplace=True)


class Block(nn.Module):
    """Inverted residual (Sandler et al., 2018): widen, filter each channel, narrow.

    Without expansion it is a depthwise separable convolution; the names are timm's for both. In
    training, each image skips the block with probability `drop_path`, if it has a residual
    connection (stochastic depth, Huang et al., 2016).
    """

    drop_path = 0.0

    def __init__(
        self, channels: int, out: int, kernel: int, stride: int, *, expansion: int
    ) -> None:
        super().__init__()
        self.is_residual = stride == 1 and channels == out
        wide = channels * expansion
        depthwise = SameConv(wide, wide, kernel, stride=stride, groups=wide)
        if expansion == 1:
            self.conv_dw, self.bn1 = depthwise, BatchNormReLU6(wide)
            self.conv_pw, self.bn2 = SameConv(wide, out, 1), nn.BatchNorm2d(out, eps=1e-3)
        else:
            self.conv_pw, self.bn1 = SameConv(channels, wide, 1), BatchNormReLU6(wide)
            self.conv_dw, self.bn2 = depthwise, BatchNormReLU6(wide)
            self.conv_pwl, self.bn3 = SameConv(wide, out, 1), nn.BatchNorm2d(out, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for layer in self.children():  # in the order of construction
            y = layer(y)
        if not self.is_residual:
            return y
        if self.drop_path and self.training:
            y = y * F.dropout(y.new_ones(len(y), 1, 1, 1), self.drop_path)
        return x + y


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
