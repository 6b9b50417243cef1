"""Pretrained CNNs: images to feature maps."""

from captioner.models.backbones.backbone import Backbone, Preprocessing, build_backbone

__all__ = ["Backbone", "Preprocessing", "build_backbone"]
