"""Pretrained CNN to Grid."""

from captioner.encoders.backbone import Backbone, Preprocessing
from captioner.encoders.backbones import build_backbone
from captioner.encoders.encoder import Encoder

__all__ = ["Backbone", "Encoder", "Preprocessing", "build_backbone"]
