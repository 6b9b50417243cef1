"""Scores and windows in addition to the paper's."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from captioner.config import AttentionConfig, require_divisor
from captioner.models.attention.attention import Score, Window, split_heads
from captioner.runtime.device import at_least_float32
from captioner.types import Grid


class DotScore(Score):
    """e_i = (W_q h) . (W_k a_i), Luong's `dot` (2015, equation 8) with projections to one size.

    `scaled_dot` divides by the root of the size of a head (Vaswani et al., 2017, equation 1). A
    bias on the keys would cancel in the softmax.
    """

    def __init__(self, config: AttentionConfig, *, query_dim: int, feature_dim: int) -> None:
        require_divisor("attention.heads", config.heads, config.dim, "attention.dim")
        super().__init__(
            query=nn.Linear(query_dim, config.dim),
            key=nn.Linear(feature_dim, config.dim, bias=False),
            heads=config.heads,
        )
        self.scale = (config.dim / config.heads) ** -0.5 if config.score == "scaled_dot" else 1.0

    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        return super().compare(queries * self.scale, keys)


class GeneralScore(Score):
    """e_i = h . W a_i, Luong's `general` (2015, equation 8)."""

    def __init__(self, config: AttentionConfig, *, query_dim: int, feature_dim: int) -> None:
        require_divisor("attention.heads", config.heads, query_dim, "decoder.hidden_dim")
        key = nn.Linear(feature_dim, query_dim, bias=False)
        super().__init__(query=nn.Identity(), key=key, heads=config.heads)


class CosineScore(DotScore):
    """e_i = cos(W_q h, W_k a_i) / tau, with a learned temperature tau for each head.

    Graves et al. (Neural Turing Machines, 2014, equations 5 and 6), whose key strength is 1 / tau.
    It starts at 10, as in Swin Transformer v2: cosines alone would stay near a uniform map.
    """

    def __init__(self, config: AttentionConfig, *, query_dim: int, feature_dim: int) -> None:
        super().__init__(config, query_dim=query_dim, feature_dim=feature_dim)
        self.log_strength = nn.Parameter(torch.full((config.heads,), math.log(10.0)))

    def keys(self, features: Tensor) -> Tensor:
        """Return keys of length 1."""
        return functional.normalize(super().keys(features), dim=-1)

    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        strength = self.log_strength.exp().view(-1, 1, 1)
        return super().compare(functional.normalize(queries, dim=-1) * strength, keys)


class LocationScore(Score):
    """e = W h, Luong's `location` (2015, section 3.1): the state chooses; W has a row a cell."""

    def __init__(
        self, config: AttentionConfig, *, query_dim: int, feature_dim: int, cells: int
    ) -> None:
        query = nn.Linear(query_dim, config.heads * cells)
        super().__init__(query=query, key=nn.Identity(), heads=config.heads)

    def keys(self, features: Tensor) -> Tensor:
        """Return keys without numbers, [B, heads, L, 0]."""
        return split_heads(features[..., :0], 1).expand(-1, self.heads, -1, -1)

    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries


class PredictiveWindow(Window):
    """Luong's local-p (2015, section 3.2, equations 9 and 10) on a grid.

    For rows and for columns, the state predicts a centre, p = S * sigmoid(v . tanh(W h)), where S
    is the last index. Cells are weighted by a Gaussian around it with a standard deviation of
    D / 2; cells further away than the radius D get no attention.
    """

    def __init__(self, config: AttentionConfig, *, query_dim: int) -> None:
        super().__init__(config, query_dim=query_dim)
        self.hidden = nn.Linear(query_dim, query_dim, bias=False)
        self.centre = nn.Linear(query_dim, 2, bias=False)

    def forward(self, query: Tensor, grid: Grid, position: int | Tensor) -> Tensor:
        # float32 under autocast: half precision cannot place a centre in a large grid
        centre = at_least_float32(self.centre(torch.tanh(self.hidden(query))))
        share = torch.sigmoid(centre)  # [B, K, 2]
        rows = torch.arange(grid.height, device=query.device)
        columns = torch.arange(grid.width, device=query.device)
        down = rows - share[..., :1] * (grid.height - 1)  # [B, K, rows]
        right = columns - share[..., 1:] * (grid.width - 1)  # [B, K, columns]
        down, right = self._bias(down), self._bias(right)
        return (down.unsqueeze(-1) + right.unsqueeze(-2)).flatten(-2)

    def _bias(self, distance: Tensor) -> Tensor:
        radius = self.config.radius
        gaussian = -distance.square() / (2 * (radius / 2) ** 2)
        return gaussian.masked_fill(distance.abs() > radius, -torch.inf)


class MonotonicWindow(Window):
    """Luong's local-m (2015, section 3.2) on a grid: the window moves on with every word.

    A grid is read like a page, row by row: word t attends to the cells within D places of place
    t * L / `words`, and to the last cells after `words` words. It is there for comparison.
    """

    def forward(self, query: Tensor, grid: Grid, position: int | Tensor) -> Tensor:
        count = grid.height * grid.width
        if not isinstance(position, Tensor):  # filled on the device: a copy to it would wait
            position = torch.full((1,), position, device=query.device)
        centre = (position * count / self.config.words).clamp(max=count - 1)  # [1] or [K]
        distance = torch.arange(count, device=query.device) - centre.unsqueeze(-1)
        outside = distance.abs() > self.config.radius  # [1, L] or [K, L]
        bias = torch.zeros(outside.shape, device=query.device).masked_fill(outside, -torch.inf)
        return bias.expand(*query.shape[:2], -1)
