"""Captions from a decoder: beam search, sampling, and scores of given captions."""

from captioner.generation.beam_search import Hypothesis, SearchOptions, search
from captioner.generation.sampling import sample, truncate, writable
from captioner.generation.scoring import force_decode
