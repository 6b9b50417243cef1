"""Encoder and decoder together; the only place that turns settings into modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor, nn

from captioner.config import (
    AttentionConfig,
    DecoderConfig,
    EncoderConfig,
    ModelConfig,
    PreprocessConfig,
    validate,
)
from captioner.data.transforms import Augmentation, ImageTransform
from captioner.errors import ConfigError
from captioner.models.attention import (
    AdditiveScore,
    Attention,
    CosineScore,
    DotScore,
    GeneralScore,
    GlobalWindow,
    HardSelect,
    HeadValues,
    LocationScore,
    MonotonicWindow,
    PredictiveWindow,
    Score,
    Select,
    SoftSelect,
    Window,
)
from captioner.models.backbones import Encoder, GridSelfAttention, build_backbone
from captioner.models.decoders import (
    Decoder,
    LSTMDecoder,
    LuongDecoder,
    MeanDecoder,
    TeacherForcingOutput,
    TopDownDecoder,
    TransformerDecoder,
)
from captioner.types import Grid

ModelConfigT = TypeVar("ModelConfigT", bound=ModelConfig)


class CaptionModel(nn.Module):
    """Photo to grid to words."""

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(
        self,
        grid: Grid,
        image_index: Tensor,
        tokens: Tensor,
        lengths: Tensor,
        style: Tensor | None = None,
    ) -> TeacherForcingOutput:
        """Write given captions of the images that the encoder made the grid of.

        Args:
            grid: Annotation vectors of B images.
            image_index: [N], the image of each caption.
            tokens: [N, T], the words read, from the start token on.
            lengths: [N] on the CPU, falling.
            style: [N, E], added to the embedding of each caption's first token.
        """
        memory = self.decoder.prepare(grid).select(image_index)
        return self.decoder(memory, tokens, lengths, style)


def build_model(
    config: ModelConfig, vocabulary_size: int, *, pretrained: bool = True
) -> CaptionModel:
    """Build the modules that the settings name.

    `pretrained=False` leaves the backbone's weights random, for a model folder's own to be loaded.

    Raises:
        ConfigError: a setting that cannot be used.
        WeightsError: pretrained weights that cannot be had.
    """
    validate(config)
    encoder = build_encoder(config.encoder, pretrained=pretrained)
    cells = None
    if config.attention.score == "location":
        cells = encoder.cells(config.preprocess.height_px, config.preprocess.width_px)
    decoder = build_decoder(
        config.decoder,
        config.attention,
        feature_dim=encoder.dim,
        vocabulary_size=vocabulary_size,
        cells=cells,
    )
    return CaptionModel(encoder, decoder)


def build_encoder(config: EncoderConfig, *, pretrained: bool = True) -> Encoder:
    backbone = build_backbone(
        config.backbone, weights=config.weights if pretrained else "none", tap=config.tap
    )
    self_attention = None
    if config.self_attention_layers:
        dim = config.project_dim or backbone.channels
        _divides("encoder.self_attention_heads", config.self_attention_heads, dim, "D")
        if dim % 4:
            raise ConfigError(
                f"encoder.project_dim: positions in a grid need a multiple of 4, not {dim}"
            )
        self_attention = GridSelfAttention(
            dim=dim,
            layers=config.self_attention_layers,
            heads=config.self_attention_heads,
            feedforward_dim=2 * dim,
            dropout=config.dropout,
        )
    return Encoder(
        backbone,
        trainable_from=config.trainable_from,
        batch_norm=config.batch_norm,
        project_dim=config.project_dim,
        dropout=config.dropout,
        drop_path=config.drop_path,
        self_attention=self_attention,
    )


def build_attention(
    config: AttentionConfig,
    *,
    query_dim: int,
    feature_dim: int,
    cells: int | None = None,
    context_dim: int | None = None,
) -> Attention:
    """cells: L, for the `location` score. context_dim: size of projected contexts, if any."""
    values = None
    if config.heads > 1 or context_dim is not None:
        _divides("attention.heads", config.heads, feature_dim, "D, the size of a cell's vector,")
        values = HeadValues(
            feature_dim=feature_dim, context_dim=context_dim or feature_dim, heads=config.heads
        )
    score = build_score(config, query_dim=query_dim, feature_dim=feature_dim, cells=cells)
    return Attention(
        score,
        build_window(config, query_dim=query_dim),
        build_select(config),
        values=values,
        local=config.values == "local",
    )


def build_score(
    config: AttentionConfig, *, query_dim: int, feature_dim: int, cells: int | None
) -> Score:
    sizes = {"query_dim": query_dim, "feature_dim": feature_dim, "heads": config.heads}
    if config.score == "general":
        _divides("attention.heads", config.heads, query_dim, "decoder.hidden_dim")
        return GeneralScore(**sizes)
    if config.score == "location":
        if cells is None:
            raise ConfigError("attention.score: location needs to know the number of cells")
        return LocationScore(query_dim=query_dim, cells=cells, heads=config.heads)
    _divides("attention.heads", config.heads, config.dim, "attention.dim")
    if config.score == "cosine":
        return CosineScore(**sizes, attention_dim=config.dim)
    if config.score in ("dot", "scaled_dot"):
        return DotScore(**sizes, attention_dim=config.dim, scaled=config.score == "scaled_dot")
    return AdditiveScore(**sizes, attention_dim=config.dim, bias=config.score == "additive")


def build_window(config: AttentionConfig, *, query_dim: int) -> Window:
    if config.window == "local_p":
        return PredictiveWindow(query_dim=query_dim, radius_cells=config.radius)
    if config.window == "local_m":
        return MonotonicWindow(radius_cells=config.radius, words=config.words)
    return GlobalWindow()


def build_select(config: AttentionConfig) -> Select:
    if config.select == "soft":
        return SoftSelect(temperature=config.temperature)
    return HardSelect(
        temperature=config.temperature,
        semi_sampling=config.semi_sampling,
        at_test=config.at_test,
    )


def build_decoder(
    config: DecoderConfig,
    attention: AttentionConfig,
    *,
    feature_dim: int,
    vocabulary_size: int,
    cells: int | None = None,
) -> Decoder:
    """cells: L, for the `location` score."""
    words: dict[str, Any] = {
        "vocabulary_size": vocabulary_size,
        "hidden_dim": config.hidden_dim,
        "tie_embeddings": config.tie_embeddings,
        "dropout": config.dropout,
        "embed_dropout": config.embed_dropout,
    }
    if config.kind == "mean":
        return MeanDecoder(feature_dim=feature_dim, embed_dim=config.embed_dim, **words)
    sizes: dict[str, Any] = {
        "query_dim": config.hidden_dim,
        "feature_dim": feature_dim,
        "cells": cells,
    }
    if config.kind == "transformer":
        _divides("decoder.heads", config.heads, config.hidden_dim, "decoder.hidden_dim")
        return TransformerDecoder(
            [
                build_attention(attention, context_dim=config.hidden_dim, **sizes)
                for _ in range(config.layers)
            ],
            heads=config.heads,
            feedforward_dim=config.feedforward_dim,
            positions=config.positions,
            max_positions=config.max_positions,
            pre_norm=config.pre_norm,
            **words,
        )
    words |= {"feature_dim": feature_dim, "embed_dim": config.embed_dim, "gate": config.gate}
    looking = build_attention(attention, **sizes)
    if config.kind == "luong":
        return LuongDecoder(looking, input_feeding=config.input_feeding, **words)
    if config.kind == "top_down":
        return TopDownDecoder(looking, **words)
    return LSTMDecoder(looking, output=config.output, **words)


def _divides(key: str, heads: int, size: int, what: str) -> None:
    if size % heads:
        raise ConfigError(f"{key}: {heads} does not divide {what} {size}; use a divisor of {size}")


def image_transform(
    config: PreprocessConfig, augmentation: Augmentation | None = None
) -> ImageTransform:
    """The transform of resolved settings."""
    if config.mean is None or config.std is None or config.interpolation is None:
        raise ConfigError("preprocess: mean, std and interpolation must be given")
    return ImageTransform(
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
