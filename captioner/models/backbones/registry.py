"""Pretrained networks by name.

VGG-19, the ResNets and EfficientNet-Lite2 are cut into their stages, so that fine-tuning can start
at any of them and the output of the frozen ones can be cached. Every other convolutional network of
torchvision or timm, and every transformer of timm that can be used, is one stage, `body`.
"""

from __future__ import annotations

from captioner.errors import ConfigError
from captioner.models.backbones.backbone import DEFAULT_SIZE_PX, Backbone
from captioner.registry import BACKBONE_SOURCES


def build_backbone(
    name: str,
    *,
    weights: str = "default",
    tap: str | None = None,
    size_px: tuple[int, int] = DEFAULT_SIZE_PX,
) -> Backbone:
    """Build a backbone and load its weights.

    Args:
        name: `efficientnet_lite2`, or a network of torchvision or timm, if need be with the
            library's name in front (`timm/resnet18`). The sources are tried in their order.
        weights: `default`, `none` (random; for a model folder's weights to be loaded after), the
            name of a torchvision weights entry, or the path of a file (.pth or .safetensors) in the
            library's own layout.
        tap: Name of the last stage for networks in stages, or a graph node for other torchvision
            networks.
        size_px: Height and width of the images. A transformer is built for them, its position
            embeddings interpolated; other networks take images of any size.

    Raises:
        ConfigError: There is no such network, tap or weights entry.
        WeightsError: The weights are not on this machine and cannot be downloaded.
    """
    source, _, plain = name.rpartition("/")
    for known in BACKBONE_SOURCES:
        if source in ("", known):
            # Imported only when needed: torchvision and timm take seconds.
            backbone: Backbone | None = BACKBONE_SOURCES[known](plain, weights, tap, size_px)
            if backbone is not None:
                return backbone
    raise ConfigError(
        f"encoder.backbone: there is no network '{name}'; use efficientnet_lite2, vgg19, resnet50, "
        "resnet101, resnet152, or a convolutional network of torchvision or timm, or a ViT, CLIP "
        "or Swin tower of timm, by its name"
    )
