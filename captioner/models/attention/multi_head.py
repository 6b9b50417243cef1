"""Several heads over projected values (Vaswani et al., 2017)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from captioner.models.attention.attention import Attention, Memory, split_heads
from captioner.runtime.draws import child_seeds
from captioner.types import AttentionOutput, Grid


class HeadValues(nn.Module):
    """Projects values for several heads, and the heads' contexts back to one vector.

    W_V and W_O of multi-head attention (Vaswani et al., 2017, section 3.2.2).
    """

    def __init__(self, *, feature_dim: int, context_dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.value = nn.Linear(feature_dim, feature_dim)
        self.output = nn.Linear(feature_dim, context_dim)


class MultiHeadAttention(Attention):
    """score -> window -> select for each head on its own, over projected values.

    The map of a word is the mean over the heads. With hard attention each head samples a cell.
    """

    def __init__(self, *stages: Any, values: HeadValues, **settings: Any) -> None:
        super().__init__(*stages, **settings)  # as of `Attention`
        self.values = values

    def prepare(self, grid: Grid) -> Memory:
        """Project keys and values of B grids, once per image."""
        memory = super().prepare(grid)
        values = split_heads(self.values.value(memory.grid.features), self.values.heads)
        return replace(memory, values=values)

    def forward(self, query: Tensor, memory: Memory, position: int | Tensor) -> AttentionOutput:
        assert memory.values is not None
        scores = self.scores(query, memory, position)  # [B, heads, K, L]
        shape, heads = scores.shape[:2], scores.shape[1]
        use_expectation = memory.use_expectation
        if use_expectation is not None:
            use_expectation = use_expectation.repeat_interleave(heads)
        seeds = memory.seeds
        if seeds is not None:  # one for each head and word: [B * heads, 1] or [B * heads, K]
            head = torch.arange(heads, device=seeds.device)
            seeds = child_seeds(seeds.unsqueeze(1), head).flatten()
            seeds = child_seeds(seeds.unsqueeze(1), position)
        attended = self.select(
            scores.flatten(0, 1), memory.values.flatten(0, 1), use_expectation, seeds
        )
        maps = attended.weights.unflatten(0, shape)  # [B, heads, K, L]
        cells = attended.cells
        if cells is not None:
            cells = cells.unflatten(0, shape).transpose(1, 2)  # [B, K, heads]
            cells = cells.squeeze(-1) if heads == 1 else cells
        contexts = attended.context.unflatten(0, shape).transpose(1, 2)  # [B, K, heads, D / heads]
        return AttentionOutput(
            context=self.values.output(contexts.flatten(-2)),
            weights=maps.mean(1),
            entropy=attended.entropy.unflatten(0, shape).mean(1),
            # heads sample independently given the state
            log_prob=attended.log_prob.unflatten(0, shape).sum(1),
            cells=cells,
            heads=maps.transpose(1, 2).unsqueeze(2) if heads > 1 else None,
        )
