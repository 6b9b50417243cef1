"""Pretrained CNN to Grid."""

from captioner.encoders.backbones import Backbone, Preprocessing, build_backbone
from captioner.encoders.encoder import Encoder

__all__ = ["Backbone", "Encoder", "Preprocessing", "build_backbone"]
