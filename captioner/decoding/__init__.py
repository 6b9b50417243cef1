"""Search for a caption, captions drawn at random, and forced scoring of a given one."""

from captioner.decoding.sample import sample, writable
from captioner.decoding.score import score
from captioner.decoding.search import Hypothesis, search

__all__ = ["Hypothesis", "sample", "score", "search", "writable"]
