"""Luong's local windows on a grid."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from captioner.config import AttentionConfig
from captioner.models.attention.attention import Window
from captioner.types import Grid


class PredictiveWindow(Window):
    """Luong's local-p (2015, section 3.2, equations 9 and 10) on a grid.

    For rows and for columns, the state predicts a centre, p = S * sigmoid(v . tanh(W h)), where S
    is the last index. Cells are weighted by a Gaussian around it with a standard deviation of
    D / 2; cells further away than the radius D get no attention.
    """

    def __init__(self, config: AttentionConfig, *, query_dim: int) -> None:
        super().__init__()
        self.radius = config.radius
        self.hidden = nn.Linear(query_dim, query_dim, bias=False)
        self.centre = nn.Linear(query_dim, 2, bias=False)

    def forward(self, query: Tensor, grid: Grid, position: int | Tensor) -> Tensor:
        centre = self.centre(torch.tanh(self.hidden(query)))
        # float32 under autocast: half precision cannot place a centre in a large grid
        centre = centre.to(torch.promote_types(centre.dtype, torch.float32))
        share = torch.sigmoid(centre)  # [B, K, 2]
        rows = torch.arange(grid.height, device=query.device)
        columns = torch.arange(grid.width, device=query.device)
        down = rows - share[..., :1] * (grid.height - 1)  # [B, K, rows]
        right = columns - share[..., 1:] * (grid.width - 1)  # [B, K, columns]
        down, right = self._bias(down), self._bias(right)
        return (down.unsqueeze(-1) + right.unsqueeze(-2)).flatten(-2)

    def _bias(self, distance: Tensor) -> Tensor:
        gaussian = -distance.square() / (2 * (self.radius / 2) ** 2)
        return gaussian.masked_fill(distance.abs() > self.radius, -torch.inf)


class MonotonicWindow(Window):
    """Luong's local-m (2015, section 3.2) on a grid: the window moves on with every word.

    A grid is read like a page, row by row: word t attends to the cells within D places of place
    t * L / `words`, and to the last cells after `words` words. It is there for comparison.
    """

    def __init__(self, config: AttentionConfig, *, query_dim: int) -> None:
        super().__init__()
        self.radius = config.radius
        self.words = config.words

    def forward(self, query: Tensor, grid: Grid, position: int | Tensor) -> Tensor:
        count = grid.height * grid.width
        if not isinstance(position, Tensor):  # filled on the device: a copy to it would wait
            position = torch.full((1,), position, device=query.device)
        centre = (position * count / self.words).clamp(max=count - 1)  # [1] or [K]
        distance = torch.arange(count, device=query.device) - centre.unsqueeze(-1)
        outside = distance.abs() > self.radius  # [1, L] or [K, L]
        bias = torch.zeros(outside.shape, device=query.device).masked_fill(outside, -torch.inf)
        return bias.expand(*query.shape[:2], -1)
