"""Refusal of settings that no model can be built from, or no search can use."""

from __future__ import annotations

import math

from captioner.config.settings import DecodingConfig, ModelConfig
from captioner.errors import ConfigError


def check(config: ModelConfig) -> None:
    """Refuse numbers that no model can be built from.

    Raises:
        ConfigError: names the key and what is accepted.
    """
    sizes = {
        "preprocess.height_px": config.preprocess.height_px,
        "preprocess.width_px": config.preprocess.width_px,
        "encoder.self_attention_heads": config.encoder.self_attention_heads,
        "attention.dim": config.attention.dim,
        "attention.heads": config.attention.heads,
        "attention.words": config.attention.words,
        "decoder.hidden_dim": config.decoder.hidden_dim,
        "decoder.embed_dim": config.decoder.embed_dim,
        "decoder.layers": config.decoder.layers,
        "decoder.heads": config.decoder.heads,
        "decoder.feedforward_dim": config.decoder.feedforward_dim,
        "decoder.max_positions": config.decoder.max_positions,
    }
    if config.encoder.project_dim is not None:
        sizes["encoder.project_dim"] = config.encoder.project_dim
    for key, value in sizes.items():
        if value < 1:
            raise ConfigError(f"{key}: {value} is too small; use a whole number from 1 up")
    check_search(config.decoding, "decoding.")
    shares = {
        "encoder.dropout": config.encoder.dropout,
        "encoder.drop_path": config.encoder.drop_path,
        "decoder.dropout": config.decoder.dropout,
        "decoder.embed_dropout": config.decoder.embed_dropout,
    }
    for key, share in shares.items():
        if not 0 <= share < 1:
            raise ConfigError(f"{key}: {share} is not accepted; use a number from 0 up to below 1")
    _check_attention(config)
    if not all(0 < value < math.inf for value in config.preprocess.std or ()):
        raise ConfigError("preprocess.std: use three numbers above 0")


def _check_attention(config: ModelConfig) -> None:
    attention, decoder = config.attention, config.decoder
    if config.encoder.self_attention_layers < 0:
        raise ConfigError("encoder.self_attention_layers: use 0 or more")
    if not 0 <= attention.semi_sampling <= 1:
        raise ConfigError(
            f"attention.semi_sampling: {attention.semi_sampling} is not accepted; use 0 to 1"
        )
    if not 0 < attention.temperature < math.inf:
        raise ConfigError(
            f"attention.temperature: {attention.temperature} is not accepted; use a number above 0"
        )
    if not 0.5 <= attention.radius < math.inf:  # the cell nearest to a centre must be inside
        raise ConfigError(
            f"attention.radius: {attention.radius} is not accepted; use 0.5 cells or more"
        )
    reads = config.decoding.max_words
    if decoder.reads_at_most is not None and reads > decoder.reads_at_most:
        raise ConfigError(
            f"decoder.max_positions: {decoder.max_positions} learned positions are too few for "
            f"decoding.max_words {reads}; use {reads} or more"
        )


def check_search(decoding: DecodingConfig, section: str = "") -> None:
    """Refuse numbers that no search can use.

    Raises:
        ConfigError: names the key, with the section in front, and what is accepted.
    """
    for key, value in (("beam_size", decoding.beam_size), ("max_words", decoding.max_words)):
        if value < 1:
            raise ConfigError(f"{section}{key}: {value} is too small; use a whole number from 1 up")
    if decoding.no_repeat_ngram < 0:
        raise ConfigError(f"{section}no_repeat_ngram: use 0 or more")
    # Beyond 10, lengths to this power leave the range of floats; the field uses 0 to 2.
    if not -10 <= decoding.length_penalty <= 10:  # written so that NaN is refused too
        raise ConfigError(
            f"{section}length_penalty: {decoding.length_penalty} is not accepted; use a number "
            "from -10 to 10"
        )
