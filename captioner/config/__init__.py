"""Every setting, typed, with its range, default and meaning; YAML files and options fill it.

Importing this package imports no torch.
"""

from captioner.config.files import (
    from_yaml,
    instantiate,
    parser_for,
    read_recipe,
    set_defaults,
    shipped_recipes,
    to_yaml,
)
from captioner.config.settings import (
    AttentionConfig,
    Config,
    DataConfig,
    DecoderConfig,
    DecodingConfig,
    EncoderConfig,
    HardAttentionMode,
    HardConfig,
    Interpolation,
    LossConfig,
    ModelConfig,
    OptimConfig,
    PreprocessConfig,
    ResizeMode,
    SelfCriticalConfig,
    SourceConfig,
    TrainConfig,
)
from captioner.config.validation import (
    REMOVED,
    data_sources,
    require_divisor,
    unused_settings,
    validate,
    validate_section,
    warn_of_removed,
    with_source_roots,
)
