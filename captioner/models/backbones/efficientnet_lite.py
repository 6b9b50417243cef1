"""EfficientNet-Lite2 (Tan and Le, 2019; Google's "lite" variant of 2020), the default encoder.

Lite: no squeeze-and-excitation, ReLU6, and a stem and a head that do not grow with the network. It
is TensorFlow's network, so padding is TensorFlow's: an odd row or column goes below or right. Names
and order of weights are timm's (tf_efficientnet_lite2); the modules are here because importing
timm takes longer than captioning an image. `fused_encoder.py` replaces convolutions for inference.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Kernel, stride, expansion, channels, repeats of each stage, at width 1.1 and depth 1.2.
LITE2 = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 3),
    (5, 2, 6, 48, 3),
    (3, 2, 6, 88, 4),
    (5, 1, 6, 120, 4),
    (5, 2, 6, 208, 5),
    (3, 1, 6, 352, 1),
)
STEM, HEAD = 32, 1280


class EfficientNetLite2(nn.Module):
    """The classifier of ImageNet: images [B, 3, H, W] to logits [B, 1000]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem = SameConv(3, STEM, 3, stride=2)
        self.bn1 = BatchNormReLU6(STEM)
        self.blocks = nn.Sequential()
        channels = STEM
        for kernel, stride, expansion, out, repeats in LITE2:
            first = Block(channels, out, kernel, stride, expansion=expansion)
            others = [Block(out, out, kernel, 1, expansion=expansion) for _ in range(repeats - 1)]
            self.blocks.append(nn.Sequential(first, *others))
            channels = out
        self.conv_head = SameConv(channels, HEAD, 1)
        self.bn2 = BatchNormReLU6(HEAD)
        self.classifier = nn.Linear(HEAD, 1000)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # He et al. 2015, by the outputs of a weight
                fan_out = module.weight[0, 0].numel() * module.out_channels // module.groups
                nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))

    def forward(self, images: Tensor) -> Tensor:
        features = self.blocks(self.bn1(self.conv_stem(images)))
        features = self.bn2(self.conv_head(features))
        return self.classifier(features.mean((2, 3)))


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
            down, right = (self._missing(size) for size in x.shape[2:])
            x = F.pad(x, (right // 2, right - right // 2, down // 2, down - down // 2))
        autocast = x.device.type == "cpu" and torch.is_autocast_enabled("cpu")
        if self.groups == 1 or not (autocast and torch.is_grad_enabled()):
            return super().forward(x)
        # Depthwise: on a CPU, its gradient in bfloat16 takes three times as long as in float32.
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.to(self.weight.dtype))

    def _missing(self, size: int) -> int:
        """Return how many rows or columns of padding TensorFlow adds in all."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        return max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)


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


def set_drop_path(module: nn.Module, probability: float) -> int:
    """Set `drop_path` of all residual blocks and return their number."""
    blocks = [m for m in module.modules() if isinstance(m, Block) and m.is_residual]
    for block in blocks:
        block.drop_path = probability
    return len(blocks)
