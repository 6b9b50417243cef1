"""From settings to modules: the only place in models that reads a whole config."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from captioner.config import (
    AttentionConfig,
    DecoderConfig,
    EncoderConfig,
    ModelConfig,
    require_divisor,
)
from captioner.config.validation import validate
from captioner.errors import ConfigError
from captioner.models.attention.attention import Attention
from captioner.models.attention.self_attention import GridSelfAttention
from captioner.models.backbones.backbone import build_backbone
from captioner.models.backbones.sources import set_drop_path
from captioner.models.decoders.base import Decoder
from captioner.models.model import CaptionModel, Encoder
from captioner.registry import DECODERS

ModelConfigT = TypeVar("ModelConfigT", bound=ModelConfig)


def build_model(
    config: ModelConfig, vocabulary_size: int, *, pretrained: bool = True
) -> CaptionModel:
    """Build the modules that the settings name.

    Args:
        pretrained: False leaves the backbone's weights random: those of a model folder follow.
    """
    validate(config)
    preprocess = config.preprocess
    size_px = (preprocess.height_px, preprocess.width_px)
    encoder = build_encoder(config.encoder, size_px=size_px, pretrained=pretrained)
    cells = None
    if config.attention.score == "location":  # only this score needs L, which costs a pass
        with torch.no_grad():
            cells = encoder.eval()(torch.zeros(1, 3, *size_px)).features.shape[1]
        encoder.train()
    decoder = build_decoder(
        config.decoder,
        config.attention,
        feature_dim=encoder.dim,
        vocabulary_size=vocabulary_size,
        cells=cells,
    )
    return CaptionModel(encoder, decoder)


def build_encoder(
    config: EncoderConfig, *, size_px: tuple[int, int], pretrained: bool = True
) -> Encoder:
    """Build the backbone and the layers over its feature map."""
    weights = config.weights if pretrained else "none"
    backbone = build_backbone(config.backbone, weights=weights, tap=config.tap, size_px=size_px)
    if config.drop_path and not set_drop_path(backbone, config.drop_path):
        raise ConfigError(
            "encoder.drop_path: only efficientnet_lite2 has blocks that can be left out; use 0"
        )
    self_attention = None
    if layers := config.self_attention_layers:
        dim, heads = config.project_dim or backbone.channels, config.self_attention_heads
        require_divisor("encoder.self_attention_heads", heads, dim, "D")
        if dim % 4:
            raise ConfigError(
                f"encoder.project_dim: positions in a grid need a multiple of 4, not {dim}"
            )
        self_attention = GridSelfAttention(dim, layers, heads, dropout=config.dropout)
    return Encoder(backbone, config, self_attention)


def build_decoder(
    config: DecoderConfig,
    attention: AttentionConfig,
    *,
    feature_dim: int,
    vocabulary_size: int,
    cells: int | None = None,
) -> Decoder:
    """Build the decoder that the settings name, with its attention."""
    sizes: Any = {"query_dim": config.hidden_dim, "feature_dim": feature_dim, "cells": cells}
    attend = partial(Attention, attention, **sizes)
    kind = DECODERS[config.kind]
    return kind(config, attend, feature_dim=feature_dim, vocabulary_size=vocabulary_size)


def resolved(config: ModelConfigT, model: CaptionModel) -> ModelConfigT:
    """Return the settings with the backbone's own preprocessing written out, for a model folder."""
    default, given = vars(model.encoder.backbone.preprocessing), config.preprocess
    missing = {name: value for name, value in default.items() if getattr(given, name) is None}
    return replace(config, preprocess=replace(given, **missing))
