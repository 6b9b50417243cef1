"""Pretrained CNN to Grid."""

from captioner.models.backbones.backbone import Backbone, Preprocessing
from captioner.models.backbones.registry import build_backbone
from captioner.models.encoder import Encoder
from captioner.models.self_attention import GridSelfAttention

__all__ = [
    "Backbone",
    "Encoder",
    "GridSelfAttention",
    "Preprocessing",
    "build_backbone",
]
