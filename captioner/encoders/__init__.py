"""Pretrained CNN to Grid."""

from captioner.encoders.backbone import Backbone, Preprocessing
from captioner.encoders.backbones import build_backbone
from captioner.encoders.encoder import Encoder
from captioner.encoders.self_attention import GridSelfAttention

__all__ = [
    "Backbone",
    "Encoder",
    "GridSelfAttention",
    "Preprocessing",
    "build_backbone",
]
