"""Search for a caption, captions drawn at random, and forced scoring of a given one."""

from captioner.generation.beam_search import Hypothesis, search
from captioner.generation.sampling import sample, writable
from captioner.generation.scoring import score

__all__ = ["Hypothesis", "sample", "score", "search", "writable"]
