"""The probability and attention of one given caption, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from captioner.generation import Hypothesis, force_decode
from captioner.models.decoders.base import StepDecoder
from captioner.types import Grid


def force_decode_one(
    decoder: StepDecoder, grid: Grid, tokens: Sequence[int], max_words: int | None = None
) -> Hypothesis:
    """Score one caption of the grid's first image."""
    return force_decode(decoder, grid, [[tokens]] * len(grid.features), max_words=max_words)[0][0]
