"""From a grid to words."""

from captioner.decoders.base import Decoder, Forced, packed, unpacked
from captioner.decoders.lstm import LSTMDecoder
from captioner.decoders.luong import LuongDecoder
from captioner.decoders.mean import MeanDecoder
from captioner.decoders.top_down import TopDownDecoder
from captioner.decoders.transformer import TransformerDecoder

__all__ = [
    "Decoder",
    "Forced",
    "LSTMDecoder",
    "LuongDecoder",
    "MeanDecoder",
    "TopDownDecoder",
    "TransformerDecoder",
    "packed",
    "unpacked",
]
