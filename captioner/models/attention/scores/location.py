"""Luong's location score."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from captioner.config import AttentionConfig
from captioner.errors import ConfigError
from captioner.models.attention.attention import Score, split_heads


class LocationScore(Score):
    """e = W h, Luong's `location` (2015, section 3.1): the state alone chooses the cells.

    W has one row for each cell, so the grid must have the number of cells that it was built for.
    """

    def __init__(self, *, query_dim: int, cells: int, heads: int = 1) -> None:
        super().__init__(
            query=nn.Linear(query_dim, heads * cells),
            key=nn.Identity(),
            heads=heads,
        )
        self.cells = cells

    @classmethod
    def from_config(
        cls, config: AttentionConfig, *, query_dim: int, cells: int | None, **_: Any
    ) -> LocationScore:
        if cells is None:
            raise ConfigError("attention.score: location needs to know the number of cells")
        return cls(query_dim=query_dim, cells=cells, heads=config.heads)

    def keys(self, features: Tensor) -> Tensor:
        """Return keys without numbers, [B, heads, L, 0].

        Raises:
            ConfigError: The grid has another number of cells.
        """
        if features.shape[1] != self.cells:
            raise ConfigError(
                f"attention.score: location was built for a grid of {self.cells} cells, and not "
                f"for one of {features.shape[1]}; keep preprocess.height_px and width_px, or use "
                "another score"
            )
        return split_heads(features[..., :0], 1).expand(-1, self.heads, -1, -1)

    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries
