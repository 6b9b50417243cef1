"""Where to look, given the decoder's state."""

from captioner.models.attention.attention import Attention, HeadValues, Memory, uniform_glimpse
from captioner.models.attention.score import (
    AdditiveScore,
    CosineScore,
    DotScore,
    GeneralScore,
    LocationScore,
    Score,
)
from captioner.models.attention.select import HardSelect, Select, SoftSelect, looking
from captioner.models.attention.window import (
    GlobalWindow,
    MonotonicWindow,
    PredictiveWindow,
    Window,
)

__all__ = [
    "AdditiveScore",
    "Attention",
    "CosineScore",
    "DotScore",
    "GeneralScore",
    "GlobalWindow",
    "HardSelect",
    "HeadValues",
    "LocationScore",
    "Memory",
    "MonotonicWindow",
    "PredictiveWindow",
    "Score",
    "Select",
    "SoftSelect",
    "Window",
    "looking",
    "uniform_glimpse",
]
