"""Cells that look at each other before the decoder looks at them: a CNN with self-attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class GridSelfAttention(nn.Module):
    """Pre-norm Transformer encoder layers over the cells of a grid (Vaswani et al., 2017).

    Cells carry sinusoidal positions of their row and column (Carion et al., 2020, section A.4), so
    that a grid of another size can be read.
    """

    def __init__(
        self, *, dim: int, layers: int, heads: int, feedforward_dim: int, dropout: float
    ) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            dim,
            heads,
            dim_feedforward=feedforward_dim,
            dropout=dropout,
            batch_first=True,
            norm_first=True,
        )
        self.layers = nn.TransformerEncoder(
            layer, layers, norm=nn.LayerNorm(dim), enable_nested_tensor=False
        )
        for parameter in self.layers.parameters():  # layers are copies of one: draw each anew
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(self, features: Tensor, height: int, width: int) -> Tensor:
        """Annotation vectors [B, L, D] of a grid of height x width cells to [B, L, D]."""
        places = grid_positions(height, width, features.shape[-1], device=features.device)
        refined: Tensor = self.layers(features + places.to(features.dtype))
        return refined


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
