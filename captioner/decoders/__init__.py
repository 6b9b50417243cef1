"""From a grid to words."""

from captioner.decoders.base import Decoder, Forced, packed
from captioner.decoders.lstm import LSTMDecoder

__all__ = ["Decoder", "Forced", "LSTMDecoder", "packed"]
