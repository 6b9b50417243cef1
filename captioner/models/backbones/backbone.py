"""Pretrained networks as sequences of named stages; the output of frozen stages can be cached."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from captioner.config import Interpolation
from captioner.errors import ConfigError
from captioner.registry import BACKBONE_SOURCES


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing that pretrained weights expect of an image; by default ImageNet's."""

    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    interpolation: Interpolation = "bilinear"


class Backbone(nn.Module):
    """Named stages applied one after another: images [B, 3, H, W] to a feature map [B, D, h, w]."""

    def __init__(
        self, stages: list[tuple[str, nn.Module]], *, channels: int, preprocessing: Preprocessing
    ) -> None:
        super().__init__()
        self.names = [name for name, _ in stages]
        self.stages = nn.Sequential(*(stage for _, stage in stages))
        self.channels = channels
        self.preprocessing = preprocessing

    def forward(self, x: Tensor) -> Tensor:
        return self.stages(x)

    def freeze_before(self, trainable_from: str | None) -> int:
        """Freeze all before a stage or layer (None: all); return how many stages that freezes."""
        self.requires_grad_(False)
        if trainable_from is None:
            return len(self.stages)
        # Layers of a network that is one stage, `body`, go by the network's own names.
        parameters = [
            (f"{stage}.{name}".removeprefix("body.network."), parameter)
            for stage, module in zip(self.names, self.stages, strict=True)
            for name, parameter in module.named_parameters()
        ]
        reached = trainable_from == self.names[0] == "body"
        for name, parameter in parameters:
            reached = reached or f"{name}.".startswith(f"{trainable_from}.")
            parameter.requires_grad_(reached)
        if not reached:
            layers = dict.fromkeys(name.split(".")[0] for name, _ in parameters)
            accepted = self.names if len(self.names) > 1 else list(layers)
            raise ConfigError(
                f"encoder.trainable_from: there is no stage '{trainable_from}'; "
                f"use one of {', '.join(accepted)}, or null to freeze the encoder"
            )
        trained = (any(p.requires_grad for p in stage.parameters()) for stage in self.stages)
        return list(trained).index(True)

    def fingerprint(self, stop: int | None = None) -> str:
        """Return the SHA-256 over the names and values of the first stages' weights."""
        digest = hashlib.sha256()
        for name, value in self.stages[:stop].state_dict().items():
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return digest.hexdigest()


def build_backbone(
    name: str,
    *,
    weights: str = "default",
    tap: str | None = None,
    size_px: tuple[int, int] = (224, 224),
) -> Backbone:
    """Build a backbone and load its weights.

    Args:
        name: As `encoder.backbone`; the sources are tried in their order.
        weights: As `encoder.weights`; a file is in the library's own layout.
        tap: Last stage of a network in stages, or a graph node of another torchvision network.
        size_px: Height and width of the images, for which a transformer is built.
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
