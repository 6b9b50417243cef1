"""What the cells of a grid take from each other, before the decoder attends to them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from captioner.types import Grid


class GridSelfAttention(nn.Module):
    """Pre-norm Transformer encoder layers over the cells of a grid (Vaswani et al., 2017).

    Queries and keys carry sinusoidal positions of their row and column, values do not (Carion et
    al., 2020, section A.4). Each layer starts as the identity because its last weights are zero
    (Goyal et al., 2017, section 5.1), so layers can be added to a trained model.
    """

    def __init__(self, dim: int, layers: int, heads: int, *, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(dim, heads, dropout) for _ in range(layers))

    def forward(self, features: Tensor, height: int, width: int) -> Tensor:
        """Map annotation vectors [B, L, D] of a grid of height x width cells to [B, L, D]."""
        positions = grid_positions(height, width, features.shape[-1], device=features.device)
        positions = positions.to(features.dtype)
        for layer in self.layers:
            features = layer(features, positions)
        return features


class _Layer(nn.Module):
    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, heads, dropout, batch_first=True)
        self.linear1 = nn.Linear(dim, 2 * dim)
        self.linear2 = nn.Linear(2 * dim, dim)
        self.dropout = nn.Dropout(dropout)
        for last in (self.attention.out_proj, self.linear2):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def forward(self, features: Tensor, positions: Tensor) -> Tensor:
        values = self.norm1(features)
        queries = values + positions
        attended, _ = self.attention(queries, queries, values, need_weights=False)
        features = features + self.dropout(attended)
        hidden = self.dropout(torch.relu(self.linear1(self.norm2(features))))
        return features + self.dropout(self.linear2(hidden))


def grid_positions(height: int, width: int, dim: int, *, device: torch.device) -> Tensor:
    """Encode each cell's row and column by sines and cosines, [L, dim]; 4 divides dim."""
    rates = torch.exp(torch.arange(0, dim // 2, 2, device=device) * (-2 * math.log(10000.0) / dim))

    def encode(count: int) -> Tensor:
        angles = torch.arange(count, device=device).unsqueeze(1) * rates  # [count, dim / 4]
        return torch.cat([angles.sin(), angles.cos()], dim=1)

    rows = encode(height).unsqueeze(1).expand(-1, width, -1)
    columns = encode(width).unsqueeze(0).expand(height, -1, -1)
    return torch.cat([rows, columns], dim=-1).flatten(0, 1)


def smoothed(grid: Grid, weight: float) -> Tensor:
    """Return the grid's features [B, L, D], averaged over 3 x 3 neighbouring cells.

    Args:
        weight: Of the cells on each side, in a row and then in a column: the filter (weight, 1,
            weight) / (1 + 2 weight). At the edge a cell takes the missing neighbour's place.
    """
    cells = grid.features.unflatten(1, (grid.height, grid.width))
    for dim, size in ((1, grid.height), (2, grid.width)):
        before = torch.cat([cells.narrow(dim, 0, 1), cells.narrow(dim, 0, size - 1)], dim)
        after = torch.cat([cells.narrow(dim, 1, size - 1), cells.narrow(dim, size - 1, 1)], dim)
        cells = (cells + weight * (before + after)) / (1 + 2 * weight)
    return cells.flatten(1, 2)
