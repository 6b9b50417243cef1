"""Scaled and plain dot products."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from captioner.config import AttentionConfig
from captioner.models.attention.attention import Score


class DotScore(Score):
    """e_i = (W_q h) . (W_k a_i), Luong's `dot` (2015, equation 8) with projections to one size.

    `scaled=True` divides by the root of the size of a head (Vaswani et al., 2017, equation 1). A
    bias on the keys would cancel in the softmax.
    """

    def __init__(
        self,
        *,
        query_dim: int,
        feature_dim: int,
        attention_dim: int,
        heads: int = 1,
        scaled: bool = False,
    ) -> None:
        super().__init__(
            query=nn.Linear(query_dim, attention_dim),
            key=nn.Linear(feature_dim, attention_dim, bias=False),
            heads=heads,
        )
        self.scale = (attention_dim / heads) ** -0.5 if scaled else 1.0

    @classmethod
    def from_config(cls, config: AttentionConfig, **sizes: Any) -> Score:
        return super().from_config(config, scaled=config.score == "scaled_dot", **sizes)

    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        return (queries * self.scale) @ keys.transpose(-1, -2)
