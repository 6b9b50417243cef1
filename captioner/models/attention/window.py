"""Which cells may be looked at: a bias on the scores before the softmax.

A bias instead of a factor after the softmax (Luong et al., 2015, equation 10), so that what is left
of a map is renormalised and stays a distribution.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from captioner.runtime.linear import StepLinear
from captioner.types import Grid


class Window(nn.Module, ABC):
    """A bias on the scores of each cell."""

    @abstractmethod
    def forward(self, query: Tensor, grid: Grid, position: int | Tensor) -> Tensor | None:
        """Bias [B, K, L] in log space, -inf outside; None where there is none.

        query: [B, K, H]. position: one for all, or [K], number of the word to be written, from 0.
        """


class GlobalWindow(Window):
    """Every cell (Luong et al., 2015, section 3.1)."""

    def forward(self, query: Tensor, grid: Grid, position: int | Tensor) -> Tensor | None:
        return None


class PredictiveWindow(Window):
    """Luong's local-p (2015, section 3.2, equations 9 and 10) on a grid.

    The state predicts a centre, p = S * sigmoid(v . tanh(W h)), and cells are weighed by a Gaussian
    around it with a standard deviation of D / 2; cells further away than D are not looked at. What
    a grid with two axes makes us decide: there is one centre for rows and one for columns, from one
    hidden layer with two output vectors; S is the last index of its axis, so that a centre lies
    between the centres of the first and the last cell; the window is the square of all cells within
    D rows and D columns, and the Gaussian is the product of both axes. D is in cells and at least
    0.5, so that the cell nearest to the centre is always inside.
    """

    def __init__(self, *, query_dim: int, radius_cells: float) -> None:
        super().__init__()
        self.hidden = StepLinear(query_dim, query_dim, bias=False)
        self.centre = StepLinear(query_dim, 2, bias=False)
        self.radius = radius_cells

    def forward(self, query: Tensor, grid: Grid, position: int | Tensor) -> Tensor | None:
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

    In translation word t looks around source word t. A grid has no order of its own, so we read it
    as a page: row by row from the top, each from left to right (row-major, as the cells are
    numbered). Word t looks at the cells within D places of place t * L / `words` in that order,
    which is through with the grid after `words` words and then stays at the last cell. A window
    therefore reaches over the end of a row into the beginning of the next. It is here to be
    compared: captions do not read photos as pages.
    """

    def __init__(self, *, radius_cells: float, words: int) -> None:
        super().__init__()
        self.radius = radius_cells
        self.words = words

    def forward(self, query: Tensor, grid: Grid, position: int | Tensor) -> Tensor | None:
        count = grid.height * grid.width
        if isinstance(position, int):  # filled on the device: sent there, it would wait
            position = torch.full((), position, device=query.device)
        centre = (position * count / self.words).clamp(max=count - 1)  # [] or [K]
        distance = torch.arange(count, device=query.device) - centre.unsqueeze(-1)
        outside = distance.abs() > self.radius  # [L] or [K, L]
        bias = torch.zeros(outside.shape, device=query.device).masked_fill(outside, -torch.inf)
        return bias.expand(*query.shape[:2], -1)
