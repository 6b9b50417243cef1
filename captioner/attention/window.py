"""Which cells may be looked at: a bias on the scores before the softmax."""

from __future__ import annotations

from torch import Tensor, nn

from captioner.grid import Grid


class GlobalWindow(nn.Module):
    """Every cell (Luong et al., 2015, section 3.1)."""

    def forward(self, query: Tensor, grid: Grid) -> Tensor | None:
        """Bias [B, K, L] in log space for queries [B, K, H]; None where there is none."""
        return None
