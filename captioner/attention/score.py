"""How well each cell of the grid fits the decoder's state."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


class Score(nn.Module, ABC):
    """What all scores offer: a part of the cells alone, computed once, and the comparison."""

    @abstractmethod
    def keys(self, features: Tensor) -> Tensor:
        """Annotation vectors [B, L, D] to keys [B, L, A]."""

    @abstractmethod
    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Scores [B, K, L] of queries [B, K, H] against keys [B, L, A]."""


class AdditiveScore(Score):
    """e_i = w . tanh(W_a a_i + W_h h), the MLP f_att of equation 4 (Bahdanau et al., 2015).

    The cells' part, the keys, does not depend on the state and is computed once a photo.
    """

    def __init__(self, *, query_dim: int, feature_dim: int, attention_dim: int) -> None:
        super().__init__()
        self.key = nn.Linear(feature_dim, attention_dim)
        self.query = nn.Linear(query_dim, attention_dim, bias=False)  # one bias is enough
        self.energy = nn.Linear(attention_dim, 1, bias=False)  # a bias would cancel in the softmax

    def keys(self, features: Tensor) -> Tensor:
        return self.key(features)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        hidden = torch.tanh(keys.unsqueeze(1) + self.query(query).unsqueeze(2))  # [B, K, L, A]
        return self.energy(hidden).squeeze(-1)
