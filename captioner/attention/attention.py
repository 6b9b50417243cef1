"""Attention over a grid in three independent stages: score, window, select."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from captioner.attention.score import Score
from captioner.grid import Glimpse, Grid


@dataclass(frozen=True)
class Memory:
    """A grid with what attention needs of it, computed once a photo.

    grid: features [B, L, D]; keys: [B, L, A].
    """

    grid: Grid
    keys: Tensor

    def select(self, index: Tensor | slice) -> Memory:
        """The photos of `index` ([B'] or a slice), for other batches than the encoder's."""
        grid = Grid(self.grid.features[index], self.grid.height, self.grid.width)
        return Memory(grid, self.keys[index])


class Attention(nn.Module):
    """score -> window -> select. Each stage can be exchanged without touching the others.

    score: `keys(features [B, L, D])` and `forward(query [B, K, H], keys) -> [B, K, L]`.
    window: `forward(query, grid) -> bias [B, K, L] | None`, added to the scores.
    select: `forward(scores [B, K, L], values [B, L, D]) -> Glimpse`.

    K hypotheses of one photo (the beams) share its memory.
    """

    def __init__(self, score: Score, window: nn.Module, select: nn.Module) -> None:
        super().__init__()
        self.score = score
        self.window = window
        self.select = select

    def prepare(self, grid: Grid) -> Memory:
        """Project the keys, once a photo."""
        return Memory(grid, self.score.keys(grid.features))

    def forward(self, query: Tensor, memory: Memory) -> Glimpse:
        """Look once, for queries [B, K, H]."""
        scores = self.score(query, memory.keys)
        bias = self.window(query, memory.grid)
        if bias is not None:
            scores = scores + bias
        return self.select(scores, memory.grid.features)
