"""Attention over a grid, given the decoder's state."""

from captioner.models.attention.attention import (
    Attention,
    GlobalWindow,
    Memory,
    Score,
    Select,
    SoftSelect,
    Window,
)
from captioner.models.attention.multi_head import HeadValues, MultiHeadAttention
from captioner.models.attention.scores.additive import AdditiveScore
from captioner.models.attention.scores.cosine import CosineScore
from captioner.models.attention.scores.dot import DotScore
from captioner.models.attention.scores.general import GeneralScore
from captioner.models.attention.scores.location import LocationScore
from captioner.models.attention.select import HardSelect, hard_attention_mode
from captioner.models.attention.windows import MonotonicWindow, PredictiveWindow

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
    "MultiHeadAttention",
    "PredictiveWindow",
    "Score",
    "Select",
    "SoftSelect",
    "Window",
    "hard_attention_mode",
]
