"""Encoder and decoder together; the only place that turns settings into modules."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar

from torch import Tensor, nn

from captioner.attention import AdditiveScore, Attention, GlobalWindow, SoftSelect
from captioner.config import (
    AttentionConfig,
    DecoderConfig,
    EncoderConfig,
    ModelConfig,
    PreprocessConfig,
)
from captioner.data.transforms import Augmentation, PhotoTransform
from captioner.decoders import Decoder, Forced, LSTMDecoder
from captioner.encoders import Encoder, build_backbone
from captioner.errors import ConfigError
from captioner.grid import Grid

ModelConfigT = TypeVar("ModelConfigT", bound=ModelConfig)


class CaptionModel(nn.Module):
    """Photo to grid to words."""

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(
        self,
        inputs: Tensor,
        photo_index: Tensor,
        tokens: Tensor,
        lengths: Tensor,
        *,
        from_frozen: bool = False,
    ) -> Forced:
        """Write given captions.

        inputs: photos [B, 3, H, W], or frozen features [B, C, h, w] with `from_frozen`.
        photo_index: [N], the photo of each caption. tokens: [N, T]. lengths: [N], falling.
        """
        grid: Grid = self.encoder(inputs, from_frozen=from_frozen)
        memory = self.decoder.prepare(grid).select(photo_index)
        return self.decoder(memory, tokens, lengths)


def build_model(
    config: ModelConfig, vocabulary_size: int, *, pretrained: bool = True
) -> CaptionModel:
    """Build the modules that the settings name.

    `pretrained=False` leaves the backbone's weights random, for a model folder's own to be loaded.

    Raises:
        ConfigError: a setting that cannot be used.
        WeightsError: pretrained weights that cannot be had.
    """
    check(config)
    encoder = build_encoder(config.encoder, pretrained=pretrained)
    decoder = build_decoder(
        config.decoder, config.attention, feature_dim=encoder.dim, vocabulary_size=vocabulary_size
    )
    return CaptionModel(encoder, decoder)


def build_encoder(config: EncoderConfig, *, pretrained: bool = True) -> Encoder:
    backbone = build_backbone(
        config.backbone, weights=config.weights if pretrained else "none", tap=config.tap
    )
    return Encoder(
        backbone,
        trainable_from=config.trainable_from,
        batch_norm=config.batch_norm,
        project_dim=config.project_dim,
        dropout=config.dropout,
    )


def build_attention(config: AttentionConfig, *, query_dim: int, feature_dim: int) -> Attention:
    score = AdditiveScore(query_dim=query_dim, feature_dim=feature_dim, attention_dim=config.dim)
    return Attention(score, GlobalWindow(), SoftSelect())


def build_decoder(
    config: DecoderConfig, attention: AttentionConfig, *, feature_dim: int, vocabulary_size: int
) -> Decoder:
    return LSTMDecoder(
        build_attention(attention, query_dim=config.hidden_dim, feature_dim=feature_dim),
        vocabulary_size=vocabulary_size,
        feature_dim=feature_dim,
        hidden_dim=config.hidden_dim,
        embed_dim=config.embed_dim,
        gate=config.gate,
        output=config.output,
        tie_embeddings=config.tie_embeddings,
        dropout=config.dropout,
        embed_dropout=config.embed_dropout,
    )


def photo_transform(
    config: PreprocessConfig, augmentation: Augmentation | None = None
) -> PhotoTransform:
    """The transform of resolved settings."""
    if config.mean is None or config.std is None or config.interpolation is None:
        raise ConfigError("preprocess: mean, std and interpolation must be given")
    return PhotoTransform(
        height_px=config.height_px,
        width_px=config.width_px,
        resize=config.resize,
        interpolation=config.interpolation,
        mean=config.mean,
        std=config.std,
        augmentation=augmentation,
    )


def resolved(config: ModelConfigT, model: CaptionModel) -> ModelConfigT:
    """The settings with the backbone's own preprocessing written out, as a model folder keeps."""
    own = model.encoder.backbone.preprocessing
    given = config.preprocess
    return replace(
        config,
        preprocess=replace(
            given,
            mean=given.mean or own.mean,
            std=given.std or own.std,
            interpolation=given.interpolation or own.interpolation,
        ),
    )


def check(config: ModelConfig) -> None:
    """Refuse numbers that no model can be built from.

    Raises:
        ConfigError: names the key and what is accepted.
    """
    sizes = {
        "preprocess.height_px": config.preprocess.height_px,
        "preprocess.width_px": config.preprocess.width_px,
        "attention.dim": config.attention.dim,
        "decoder.hidden_dim": config.decoder.hidden_dim,
        "decoder.embed_dim": config.decoder.embed_dim,
        "decoding.beam_size": config.decoding.beam_size,
        "decoding.max_words": config.decoding.max_words,
    }
    if config.encoder.project_dim is not None:
        sizes["encoder.project_dim"] = config.encoder.project_dim
    for key, value in sizes.items():
        if value < 1:
            raise ConfigError(f"{key}: {value} is too small; use a whole number from 1 up")
    if config.decoding.no_repeat_ngram < 0:
        raise ConfigError("decoding.no_repeat_ngram: use 0 or more")
    shares = {
        "encoder.dropout": config.encoder.dropout,
        "decoder.dropout": config.decoder.dropout,
        "decoder.embed_dropout": config.decoder.embed_dropout,
    }
    for key, share in shares.items():
        if not 0 <= share < 1:
            raise ConfigError(f"{key}: {share} is not accepted; use a number from 0 up to below 1")
    if not math.isfinite(config.decoding.length_penalty):
        raise ConfigError("decoding.length_penalty: use a finite number")
    if not all(0 < value < math.inf for value in config.preprocess.std or ()):
        raise ConfigError("preprocess.std: use three numbers above 0")
