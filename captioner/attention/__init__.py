"""Where to look, given the decoder's state."""

from captioner.attention.attention import Attention, Memory
from captioner.attention.score import AdditiveScore
from captioner.attention.select import SoftSelect
from captioner.attention.window import GlobalWindow

__all__ = ["AdditiveScore", "Attention", "GlobalWindow", "Memory", "SoftSelect"]
