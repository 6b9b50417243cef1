"""Search for a caption, and forced scoring of a given one."""

from captioner.decoding.score import score
from captioner.decoding.search import Hypothesis, search

__all__ = ["Hypothesis", "score", "search"]
