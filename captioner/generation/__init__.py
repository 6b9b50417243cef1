"""Captions from a decoder: beam search, sampling, and scores of given captions."""

from captioner.generation.beam_search import (
    Constraints,
    Hypothesis,
    StopRule,
    diverse_search,
    search,
    search_options,
)
from captioner.generation.sampling import sample, truncate, writable
from captioner.generation.scoring import score, score_captions

__all__ = [
    "Constraints",
    "Hypothesis",
    "StopRule",
    "diverse_search",
    "sample",
    "score",
    "score_captions",
    "search",
    "search_options",
    "truncate",
    "writable",
]
