"""The one list of what can be chosen by name: an entry is one file and one line here.

Settings such as `attention.score: additive` name an entry. Implementations are imported when they
are first used, so that reading settings or printing help imports neither torch nor a scorer.
"""

from __future__ import annotations

from collections import UserDict
from pkgutil import resolve_name
from typing import Any

from captioner.errors import ConfigError


class Registry(UserDict[str, Any]):
    """Implementations by name.

    Args:
        key: The setting that chooses one of them, such as `attention.score`; named in errors.
        entries: For each name, `module:attribute` of its class or function.
    """

    def __init__(self, key: str, **entries: str) -> None:
        super().__init__(entries)
        self.key = key

    def __getitem__(self, name: str) -> Any:
        """Import and return the implementation; a ConfigError if there is none of this name."""
        if name not in self:
            raise ConfigError(f"{self.key}: there is no '{name}'; use {', '.join(self)}")
        return resolve_name(self.data[name])


SCORES = Registry(
    "attention.score",
    additive="captioner.models.attention.attention:AdditiveScore",
    concat="captioner.models.attention.attention:AdditiveScore",
    dot="captioner.models.attention.scores:DotScore",
    scaled_dot="captioner.models.attention.scores:DotScore",
    general="captioner.models.attention.scores:GeneralScore",
    cosine="captioner.models.attention.scores:CosineScore",
    location="captioner.models.attention.scores:LocationScore",
)
BACKBONE_SOURCES = Registry(
    "encoder.backbone",
    captioner="captioner.models.backbones.sources:any_efficientnet_lite",
    torchvision="captioner.models.backbones.sources:any_torchvision",
    timm="captioner.models.backbones.sources:any_timm",
)
WINDOWS = Registry(
    "attention.window",
    **{"global": "captioner.models.attention.attention:Window"},  # a keyword of Python
    local_m="captioner.models.attention.scores:MonotonicWindow",
    local_p="captioner.models.attention.scores:PredictiveWindow",
)
SELECTS = Registry(
    "attention.select",
    soft="captioner.models.attention.attention:SoftSelect",
    hard="captioner.models.attention.hard:HardSelect",
)
DECODERS = Registry(
    "decoder.kind",
    lstm="captioner.models.decoders.lstm:LSTMDecoder",
    luong="captioner.models.decoders.lstm_variants:LuongDecoder",
    top_down="captioner.models.decoders.lstm_variants:TopDownDecoder",
    transformer="captioner.models.decoders.transformer:TransformerDecoder",
    mean="captioner.models.decoders.lstm_variants:MeanDecoder",
)
DATA_FORMATS = Registry(
    "data.format",
    flickr8k="captioner.data.formats.table:flickr8k",
    flickr30k="captioner.data.formats.table:flickr30k",
    karpathy="captioner.data.formats.coco:karpathy",
    coco="captioner.data.formats.coco:coco",
    imagefolder="captioner.data.formats.table:imagefolder",
    table="captioner.data.formats.table:table",
    sidecars="captioner.data.formats.sidecars:sidecars",
    webdataset="captioner.data.formats.webdataset:webdataset",
)
TOKENIZERS = Registry(
    "data.tokenizer",
    words="captioner.data.vocabulary:Tokenizer",
    characters="captioner.data.tokenizers:CharacterTokenizer",
    subwords="captioner.data.tokenizers:SubwordTokenizer",
)
TASKS = Registry(
    "task",
    self_critical="captioner.training.self_critical:SelfCriticalTask",
    cross_entropy="captioner.training.cross_entropy:CrossEntropyTask",
)
METRICS = Registry(
    "metric",
    Bleu="captioner.evaluation.metrics:BLEU",
    METEOR="captioner.evaluation.metrics:METEOR",
    ROUGE_L="captioner.evaluation.metrics:ROUGE_L",
    CIDEr="captioner.evaluation.metrics:CIDER",
)
