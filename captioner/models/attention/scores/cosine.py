"""Cosine similarity with a learned strength."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from captioner.models.attention.attention import Score


class CosineScore(Score):
    """e_i = cos(W_q h, W_k a_i) / tau, with a learned temperature tau for each head.

    Graves et al. (Neural Turing Machines, 2014, equations 5 and 6), whose key strength is 1 / tau.
    It starts at 10, as in Swin Transformer v2: cosines alone, in [-1, 1], could never make a map
    that is far from uniform.
    """

    def __init__(
        self, *, query_dim: int, feature_dim: int, attention_dim: int, heads: int = 1
    ) -> None:
        super().__init__(
            query=nn.Linear(query_dim, attention_dim),
            key=nn.Linear(feature_dim, attention_dim, bias=False),
            heads=heads,
        )
        self.log_strength = nn.Parameter(torch.full((heads,), math.log(10.0)))

    def keys(self, features: Tensor) -> Tensor:
        """Return keys of length 1."""
        return functional.normalize(super().keys(features), dim=-1)

    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        queries = functional.normalize(queries, dim=-1) * self.log_strength.exp().view(-1, 1, 1)
        return queries @ keys.transpose(-1, -2)
