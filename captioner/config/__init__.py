"""Settings of models and of training, from YAML and from Python."""

from captioner.config.fields import from_yaml, to_yaml, validate_section
from captioner.config.settings import (
    AttentionConfig,
    DecoderConfig,
    DecodingConfig,
    EncoderConfig,
    HardAttentionMode,
    Interpolation,
    ModelConfig,
    PreprocessConfig,
    ResizeMode,
)
from captioner.config.validation import require_divisor
