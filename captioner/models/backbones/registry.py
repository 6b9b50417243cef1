"""Pretrained CNNs by name.

VGG-19, the ResNets and EfficientNet-Lite2 are cut into their stages, so that fine-tuning can start
at any of them and the output of the frozen ones can be cached. Every other convolutional network
of torchvision or timm is one stage, `body`.
"""

from __future__ import annotations

from captioner.errors import ConfigError
from captioner.models.backbones.backbone import Backbone, cut_behind
from captioner.models.backbones.efficientnet_lite import efficientnet_lite2


def build_backbone(name: str, *, weights: str = "default", tap: str | None = None) -> Backbone:
    """Build a backbone and load its weights.

    `weights`: `default`, `none` (random; for a model folder's own weights to be loaded after),
    the name of a torchvision weights entry, or the path of a file (.pth or .safetensors) in the
    library's own layout. `tap` is a stage's name for the networks that have stages, or a graph
    node for other torchvision networks.

    Raises:
        ConfigError: no such network, tap or weights entry.
        WeightsError: the weights are not on this machine and cannot be downloaded.
    """
    source, _, plain = name.rpartition("/")
    if name == "efficientnet_lite2":
        return cut_behind(efficientnet_lite2(weights), tap, name)
    # Libraries that take seconds to import, and that the default network does not need.
    from captioner.models.backbones.torchvision_source import (
        STAGED,
        any_torchvision,
        torchvision_names,
    )

    if source in ("", "torchvision") and plain in STAGED:
        return cut_behind(STAGED[plain](plain, weights), tap, name)
    if source in ("", "torchvision") and plain in torchvision_names():
        return any_torchvision(plain, weights, tap)
    import timm

    from captioner.models.backbones.timm_source import any_timm

    if source in ("", "timm") and timm.is_model(plain):
        return any_timm(plain, weights, tap)
    raise ConfigError(
        f"encoder.backbone: there is no network '{name}'; use efficientnet_lite2, "
        f"{', '.join(STAGED)}, or a convolutional network of torchvision or timm by its name"
    )
