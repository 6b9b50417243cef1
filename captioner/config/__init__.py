"""Settings of a model; those of training are in `settings`, `recipes` and `validation`."""

from captioner.config.fields import require_divisor, validate_section
from captioner.config.model import (
    AttentionConfig,
    DecoderConfig,
    DecodingConfig,
    EncoderConfig,
    HardAttentionMode,
    Interpolation,
    ModelConfig,
    PreprocessConfig,
    ResizeMode,
    from_yaml,
    to_yaml,
)
