"""Attention over a grid in three exchangeable stages: score, window, select."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from captioner.config import AttentionConfig
from captioner.runtime.draws import child_seeds
from captioner.types import AttentionOutput, Grid


@dataclass(frozen=True)
class Memory:
    """Everything that attention computes of a batch of grids, once per image.

    Args:
        grid: The cells that contexts are made of, features [B, L, D].
        keys: [B, heads, L, A / heads], compared with the query by the score.
        values: [B, heads, L, D / heads], projected values (MultiHeadAttention); None where the
            cells themselves are the values, as in the paper.
        use_expectation: bool [B], images whose context is the expectation in this batch
            (HardSelect).
        seeds: int64 [B], of the cells that HardSelect draws; None takes PyTorch's own generator.
        at_random: As in `Grid`.
    """

    grid: Grid
    keys: Tensor
    values: Tensor | None = None
    use_expectation: Tensor | None = None
    seeds: Tensor | None = None
    at_random: bool = False

    def select(self, index: Tensor | slice, seeds: Tensor | None = None) -> Memory:
        """Return the memory of the images of `index`, [B'] or a slice, perhaps with new seeds."""
        parts: dict[str, Any] = {
            name: value[index] for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        parts["grid"] = replace(self.grid, features=self.grid.features[index])
        if seeds is not None:
            parts["seeds"] = seeds
        return replace(self, **parts)


class Score(nn.Module, ABC):
    """Rates how well each cell fits the decoder's state.

    With several heads, queries and keys are cut into parts of size A / heads, and each part is
    compared on its own (Vaswani et al., 2017, section 3.2.2). Subclasses are built from the
    settings, `query_dim` (H), `feature_dim` (D) and, where it is known, `cells` (L).

    Args:
        query: Module from [B, K, H] to [B, K, A].
        key: Module from [B, L, D] to [B, L, A], applied once per image.
    """

    def __init__(self, query: nn.Module, key: nn.Module, *, heads: int = 1) -> None:
        super().__init__()
        self.query = query
        self.key = key
        self.heads = heads

    def keys(self, features: Tensor) -> Tensor:
        """Map annotation vectors [B, L, D] to keys [B, heads, L, A / heads]."""
        return split_heads(self.key(features), self.heads)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Return scores [B, heads, K, L] of queries [B, K, H]."""
        return self.compare(split_heads(self.query(query), self.heads), keys)

    @abstractmethod
    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Compare queries [B, heads, K, a] with keys [B, heads, L, a]: [B, heads, K, L]."""


class Window(nn.Module, ABC):
    """Restricts attention to some of the cells.

    It does so by a bias on the scores before the softmax instead of a factor after it (equation 10
    of Luong et al., 2015), so that the map inside the window is renormalised and stays a
    distribution. Subclasses are built from the settings and `query_dim` (H).
    """

    @abstractmethod
    def forward(self, query: Tensor, grid: Grid, position: int | Tensor) -> Tensor | None:
        """Return the bias [B, K, L] in log space, -inf outside of the window; None for no bias.

        Args:
            query: [B, K, H], the decoder's state.
            grid: The cells, for their number of rows and columns.
            position: Number of the word to be written, from 0: one for all, or [K].
        """


class Select(nn.Module, ABC):
    """Turns scores into a distribution over the cells, and that into a context.

    Subclasses are built from the settings.
    """

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.temperature = config.temperature

    def draw_expectation(
        self, images: int, device: torch.device, seeds: Tensor | None = None
    ) -> Tensor | None:
        """Draw which images take the expectation in place of a sample, bool [B].

        Args:
            images: B.
            seeds: int64 [B], one for each image; None takes PyTorch's own generator.

        Returns:
            None where the select treats all images alike.
        """
        return None

    @abstractmethod
    def forward(
        self,
        scores: Tensor,
        values: Tensor,
        use_expectation: Tensor | None = None,
        seeds: Tensor | None = None,
    ) -> AttentionOutput:
        """Attend by scores [B, K, L] to values [B, L, D].

        Args:
            use_expectation: bool [B], from `draw_expectation`.
            seeds: int64 [B, K], seeds of the sampled cells; None takes PyTorch's own generator.
        """

    def distribution(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the map's logarithm [B, K, L], the map, and its entropy [B, K] in nats."""
        # at least float32: maps sum to 1 under autocast too
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if self.temperature != 1:
            scores = scores / self.temperature
        log_map = torch.log_softmax(scores, dim=-1)
        weights = log_map.exp()
        # a cell outside of the window has log 0 and adds nothing
        entropy = -(weights * log_map.masked_fill(weights == 0, 0.0)).sum(-1)
        return log_map, weights, entropy


class Attention(nn.Module):
    """score -> window -> select.

    The K hypotheses of an image (beams, or the words of a caption read at once by a Transformer)
    share its memory. There is one head, and contexts are made of the annotation vectors themselves,
    as in the paper; `MultiHeadAttention` has several, with projected values.

    Args:
        local: Make contexts (and the decoder's first state) of the cells before the encoder's
            self-attention, while keys come from those after it, so that hard attention reads what
            is in one place. Without self-attention in the encoder both are the same.
        key_smoothing: Compute keys from averages of neighbouring cells (`smoothed`).
    """

    def __init__(
        self,
        score: Score,
        window: Window,
        select: Select,
        *,
        local: bool = False,
        key_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.score = score
        self.window = window
        self.select = select
        self.local = local
        self.key_smoothing = key_smoothing

    def prepare(self, grid: Grid) -> Memory:
        """Compute the keys of B grids, once per image.

        Raises:
            ValueError: The grid's features do not have one row per cell.
        """
        if grid.features.dim() != 3 or grid.features.shape[1] != grid.height * grid.width:
            raise ValueError(
                f"a grid of {grid.height} x {grid.width} cells needs features "
                f"[B, {grid.height * grid.width}, D], not {list(grid.features.shape)}"
            )
        cells = grid.local if self.local and grid.local is not None else grid.features
        if torch.is_autocast_enabled(cells.device.type) and cells.dtype == torch.float32:
            # Once here: autocast would cast all cells again for every word.
            cells = cells.to(torch.get_autocast_dtype(cells.device.type))
        return Memory(
            Grid(cells, grid.height, grid.width),
            self.score.keys(smoothed(grid, self.key_smoothing)),
            use_expectation=self.select.draw_expectation(cells.shape[0], cells.device, grid.seeds),
            at_random=grid.at_random,
        )

    def forward(self, query: Tensor, memory: Memory, position: int | Tensor) -> AttentionOutput:
        """Attend once with queries [B, K, H] for the words at `position` (an int, or [K])."""
        scores = self.scores(query, memory, position).squeeze(1)
        seeds = memory.seeds
        if seeds is not None:  # one for each word: [B, 1] or [B, K]
            seeds = child_seeds(seeds.unsqueeze(1), position)
        return self.select(scores, memory.grid.features, memory.use_expectation, seeds)

    def scores(self, query: Tensor, memory: Memory, position: int | Tensor) -> Tensor:
        """Return scores [B, heads, K, L], -inf outside of the window."""
        scores = self.score(query, memory.keys)
        bias = self.window(query, memory.grid, position)
        if memory.at_random:
            scores = torch.zeros_like(scores)
            if bias is not None:  # its Gaussian prefers cells as scores do
                bias = bias.masked_fill(bias > -torch.inf, 0.0)
        return scores if bias is None else scores + bias.unsqueeze(1)


def smoothed(grid: Grid, weight: float) -> Tensor:
    """Return the grid's features [B, L, D], averaged over 3 x 3 neighbouring cells.

    Args:
        weight: Of the cell on either side, in a row and then in a column, where the cell itself has
            weight 1: (weight, 1, weight) / (1 + 2 weight). 0 returns the features as they are. At
            the edge a cell takes the place of the missing neighbour.
    """
    if weight == 0:
        return grid.features
    cells = grid.features.unflatten(1, (grid.height, grid.width))
    for dim, size in ((1, grid.height), (2, grid.width)):
        before = torch.cat([cells.narrow(dim, 0, 1), cells.narrow(dim, 0, size - 1)], dim)
        after = torch.cat([cells.narrow(dim, 1, size - 1), cells.narrow(dim, size - 1, 1)], dim)
        cells = (cells + weight * (before + after)) / (1 + 2 * weight)
    return cells.flatten(1, 2)


def split_heads(vectors: Tensor, heads: int) -> Tensor:
    """Map [B, n, heads * a] to [B, heads, n, a]."""
    return vectors.unflatten(-1, (heads, -1)).transpose(1, 2)
