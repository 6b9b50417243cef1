"""Settings of models and of training, from YAML and from Python."""

from captioner.config.fields import require_divisor, validate_section
from captioner.config.recipes import from_yaml, to_yaml
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
