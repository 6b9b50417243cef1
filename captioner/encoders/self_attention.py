"""Cells that look at each other before the decoder looks at them: a CNN with self-attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from captioner.linear import Linear


class GridSelfAttention(nn.Module):
    """Pre-norm Transformer encoder layers over the cells of a grid (Vaswani et al., 2017).

    Queries and keys carry sinusoidal positions of their row and column, values do not (Carion et
    al., 2020, section A.4), so a grid of another size can be read. Each layer begins as the
    identity, its last weights being zero (Goyal et al., 2017, section 5.1, for residual blocks):
    layers can be added to a trained model.
    """

    def __init__(
        self, *, dim: int, layers: int, heads: int, feedforward_dim: int, dropout: float
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            _Layer(dim, heads, feedforward_dim, dropout) for _ in range(layers)
        )

    def forward(self, features: Tensor, height: int, width: int) -> Tensor:
        """Annotation vectors [B, L, D] of a grid of height x width cells to [B, L, D]."""
        places = grid_positions(height, width, features.shape[-1], device=features.device)
        places = places.to(features.dtype)
        for layer in self.layers:
            features = layer(features, places)
        return features


class _Layer(nn.Module):
    def __init__(self, dim: int, heads: int, feedforward_dim: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.linear1 = Linear(dim, feedforward_dim)
        self.linear2 = Linear(feedforward_dim, dim)
        self.dropout = nn.Dropout(dropout)
        for last in (self.attention.out_proj, self.linear2):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def forward(self, features: Tensor, places: Tensor) -> Tensor:
        normed = self.norm1(features)
        placed = normed + places
        looked, _ = self.attention(placed, placed, normed, need_weights=False)
        features = features + self.dropout(looked)
        inner = self.dropout(torch.relu(self.linear1(self.norm2(features))))
        return features + self.dropout(self.linear2(inner))


def grid_positions(height: int, width: int, dim: int, *, device: torch.device) -> Tensor:
    """[L, dim]: half of the numbers say the row, half the column, as sines and cosines.

    dim: a multiple of 4.
    """
    rates = torch.exp(torch.arange(0, dim // 2, 2, device=device) * (-2 * math.log(10000.0) / dim))

    def waves(count: int) -> Tensor:
        angles = torch.arange(count, device=device).unsqueeze(1) * rates  # [count, dim / 4]
        return torch.cat([angles.sin(), angles.cos()], dim=1)

    rows = waves(height).unsqueeze(1).expand(-1, width, -1)
    columns = waves(width).unsqueeze(0).expand(height, -1, -1)
    return torch.cat([rows, columns], dim=-1).flatten(0, 1)
