"""Attention over a grid in three independent stages: score, window, select."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from captioner.models.attention.score import Score, split_heads
from captioner.models.attention.select import Select
from captioner.models.attention.values import Values
from captioner.models.attention.window import Window
from captioner.runtime.linear import Linear
from captioner.types import AttentionOutput, Grid


@dataclass(frozen=True)
class Memory:
    """A grid with what attention needs of it, computed once a photo.

    grid: features [B, L, D], the vectors that contexts are made of. keys: [B, heads, L, a].
    projected: values [B, heads, L, D / heads]; None where the values are the features.
    expected: [B], photos whose context is the expectation in this batch (see HardSelect), or None.
    in_steps: it is for a loop that looks once a step, and the gradients of all are made at once.
    """

    grid: Grid
    keys: Tensor
    projected: Tensor | None = None
    expected: Tensor | None = None
    in_steps: bool = False

    @cached_property
    def values(self) -> Values:
        """What contexts are made of, [B * heads, L, D / heads]."""
        features = self.grid.features if self.projected is None else self.projected.flatten(0, 1)
        return Values(features, at_once=self.in_steps)

    def select(self, index: Tensor | slice) -> Memory:
        """The photos of `index` ([B'] or a slice), for other batches than the encoder's."""
        return Memory(
            Grid(self.grid.features[index], self.grid.height, self.grid.width),
            self.keys[index],
            None if self.projected is None else self.projected[index],
            None if self.expected is None else self.expected[index],
            self.in_steps,
        )


class HeadValues(nn.Module):
    """Values of several heads, and the way back to one context.

    W_V and W_O of multi-head attention (Vaswani et al., 2017, section 3.2.2): features [B, L, D]
    to values [B, heads, L, D / heads], and contexts of that size to one of `context_dim`.
    """

    def __init__(self, *, feature_dim: int, context_dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.value = Linear(feature_dim, feature_dim)
        self.output = Linear(feature_dim, context_dim)

    def split(self, features: Tensor) -> Tensor:
        return split_heads(self.value(features), self.heads)

    def merge(self, contexts: Tensor) -> Tensor:
        """[B, heads, K, D / heads] to [B, K, context_dim]."""
        return self.output(contexts.transpose(1, 2).flatten(-2))


class Attention(nn.Module):
    """score -> window -> select. Each stage can be exchanged without touching the others.

    K hypotheses of one photo (the beams, or the words of a caption that is read as a whole) share
    its memory. With `values` there are several heads, or projected values; without it there is one
    head, whose values are the annotation vectors themselves, as in the paper.

    local: Contexts (and the decoder's first state) come from the cells before the encoder's
        self-attention, while keys come from those after it. Hard attention then reads what is in
        one place, and not one cell that self-attention let stand for all. Without self-attention
        both are the same.
    """

    def __init__(
        self,
        score: Score,
        window: Window,
        select: Select,
        *,
        values: HeadValues | None = None,
        local: bool = False,
    ) -> None:
        super().__init__()
        self.score = score
        self.window = window
        self.select = select
        self.values = values
        self.local = local

    def prepare(self, grid: Grid) -> Memory:
        """Project keys and values, once a photo."""
        cells = grid.local if self.local and grid.local is not None else grid.features
        return Memory(
            Grid(cells, grid.height, grid.width),
            self.score.keys(grid.features),
            None if self.values is None else self.values.split(cells),
            self.select.expected(len(grid.features), grid.features.device),
        )

    def forward(self, query: Tensor, memory: Memory, position: int | Tensor) -> AttentionOutput:
        """Look once.

        query: [B, K, H]. position: one for all, or [K], number of the word to be written, from 0.
        """
        scores = self.score(query, memory.keys)  # [B, heads, K, L]
        bias = self.window(query, memory.grid, position)
        if bias is not None:
            scores = scores + bias.unsqueeze(1)
        photos, heads = scores.shape[:2]
        expected = memory.expected
        if expected is not None:
            expected = expected.repeat_interleave(heads)
        attended = self.select(scores.flatten(0, 1), memory.values, expected)
        if self.values is None:
            return attended
        return self._merge(attended, self.values, photos, heads)

    def _merge(
        self, attended: AttentionOutput, values: HeadValues, photos: int, heads: int
    ) -> AttentionOutput:
        """One attended of B * heads attended_words: each head looks for itself."""

        def by_head(value: Tensor) -> Tensor:
            return value.unflatten(0, (photos, heads))

        maps = by_head(attended.weights)  # [B, heads, K, L]
        cells = None
        if attended.cells is not None:
            cells = by_head(attended.cells).transpose(1, 2)  # [B, K, heads]
            cells = cells.squeeze(-1) if heads == 1 else cells
        return AttentionOutput(
            context=values.merge(by_head(attended.context)),
            weights=maps.mean(1),
            entropy=by_head(attended.entropy).mean(1),
            log_prob=by_head(attended.log_prob).sum(1),  # heads are independent given the state
            cells=cells,
            heads=maps.transpose(1, 2).unsqueeze(2) if heads > 1 else None,
        )


def uniform_glimpse(features: Tensor, beams: int) -> AttentionOutput:
    """What a decoder without attention sees: every cell alike, for [B, L, D] and K hypotheses."""
    photos, cells, _ = features.shape
    mean = features.mean(1, keepdim=True).expand(-1, beams, -1)
    flat = features.new_full((photos, beams, cells), 1.0 / cells)
    zero = features.new_zeros(photos, beams)
    return AttentionOutput(mean, flat, entropy=torch.log(zero + cells), log_prob=zero)
