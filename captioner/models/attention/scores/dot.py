"""Scaled and plain dot products."""

from __future__ import annotations

from torch import Tensor, nn

from captioner.config import AttentionConfig
from captioner.models.attention.attention import Score
from captioner.models.attention.sizes import require_divisor


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
    def from_config(
        cls, config: AttentionConfig, *, query_dim: int, feature_dim: int, cells: int | None
    ) -> DotScore:
        require_divisor("attention.heads", config.heads, config.dim, "attention.dim")
        return cls(
            query_dim=query_dim,
            feature_dim=feature_dim,
            attention_dim=config.dim,
            heads=config.heads,
            scaled=config.score == "scaled_dot",
        )

    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        return (queries * self.scale) @ keys.transpose(-1, -2)
