"""Decoders: from a grid of annotation vectors to words."""

from captioner.models.decoders.base import (
    Decoder,
    TeacherForcingOutput,
    pack_by_step,
    unpack_by_step,
)
from captioner.models.decoders.lstm import LSTMDecoder
from captioner.models.decoders.luong import LuongDecoder
from captioner.models.decoders.mean import MeanDecoder
from captioner.models.decoders.top_down import TopDownDecoder
from captioner.models.decoders.transformer import TransformerDecoder

__all__ = [
    "Decoder",
    "LSTMDecoder",
    "LuongDecoder",
    "MeanDecoder",
    "TeacherForcingOutput",
    "TopDownDecoder",
    "TransformerDecoder",
    "pack_by_step",
    "unpack_by_step",
]
