"""Cells that look at each other before the decoder looks at them: a CNN with self-attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from captioner.runtime.linear import Linear, linear


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
        self.attention = _SelfAttention(dim, heads, dropout)
        self.linear1 = Linear(dim, feedforward_dim)
        self.linear2 = Linear(feedforward_dim, dim)
        self.dropout = nn.Dropout(dropout)
        for last in (self.attention.out_proj, self.linear2):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def forward(self, features: Tensor, places: Tensor) -> Tensor:
        normed = self.norm1(features)
        placed = normed + places
        features = features + self.dropout(self.attention(placed, normed))
        inner = self.dropout(torch.relu(self.linear1(self.norm2(features))))
        return features + self.dropout(self.linear2(inner))


class _SelfAttention(nn.Module):
    """Multi-head attention of cells to each other (Vaswani et al., 2017, section 3.2.2).

    Weights as nn.MultiheadAttention has them, which multiplies by the slower library
    (`captioner.runtime.linear`) on some CPUs.
    """

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * dim, dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * dim))
        self.out_proj = Linear(dim, dim)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, placed: Tensor, cells: Tensor) -> Tensor:
        """Queries and keys of `placed`, values of `cells`, all [B, L, D], to [B, L, D]."""
        look = 2 * cells.shape[-1]
        places = linear(placed, self.in_proj_weight[:look], self.in_proj_bias[:look])
        values = linear(cells, self.in_proj_weight[look:], self.in_proj_bias[look:])
        query, key, value = (
            x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for x in (*places.chunk(2, dim=-1), values)
        )  # [B, heads, L, D / heads]
        looked = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0
        )
        mixed: Tensor = self.out_proj(looked.transpose(1, 2).flatten(2))
        return mixed


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
