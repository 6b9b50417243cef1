"""Every setting, typed, with the reason for its default; YAML files and dotted options fill it."""

from captioner.config.check import check, check_search
from captioner.config.files import from_yaml, one_line, parser_for, refuse_null, to_yaml
from captioner.config.settings import (
    AttentionConfig,
    Config,
    DataConfig,
    DecoderConfig,
    DecodingConfig,
    EncoderConfig,
    ModelConfig,
    PreprocessConfig,
    SourceConfig,
)
from captioner.config.training import (
    HardConfig,
    LossConfig,
    OptimConfig,
    SelfCriticalConfig,
    TextConfig,
    TrainConfig,
)

__all__ = [
    "AttentionConfig",
    "Config",
    "DataConfig",
    "DecoderConfig",
    "DecodingConfig",
    "EncoderConfig",
    "HardConfig",
    "LossConfig",
    "ModelConfig",
    "OptimConfig",
    "PreprocessConfig",
    "SelfCriticalConfig",
    "SourceConfig",
    "TextConfig",
    "TrainConfig",
    "check",
    "check_search",
    "from_yaml",
    "one_line",
    "parser_for",
    "refuse_null",
    "to_yaml",
]
