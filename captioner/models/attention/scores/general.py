"""Luong's general score."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from captioner.config import AttentionConfig
from captioner.models.attention.attention import Score
from captioner.models.attention.sizes import require_divisor


class GeneralScore(Score):
    """e_i = h . W a_i, Luong's `general` (2015, equation 8)."""

    def __init__(self, *, query_dim: int, feature_dim: int, heads: int = 1) -> None:
        super().__init__(
            query=nn.Identity(),
            key=nn.Linear(feature_dim, query_dim, bias=False),
            heads=heads,
        )

    @classmethod
    def from_config(
        cls, config: AttentionConfig, *, query_dim: int, feature_dim: int, **_: Any
    ) -> GeneralScore:
        require_divisor("attention.heads", config.heads, query_dim, "decoder.hidden_dim")
        return cls(query_dim=query_dim, feature_dim=feature_dim, heads=config.heads)

    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ keys.transpose(-1, -2)
