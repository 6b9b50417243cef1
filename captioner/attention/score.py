"""How well each cell of the grid fits the decoder's state."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class AdditiveScore(nn.Module):
    """e_i = w . tanh(W_a a_i + W_h h), the MLP f_att of equation 4 (Bahdanau et al., 2015).

    The cells' part, the keys, does not depend on the state and is computed once a photo.
    """

    def __init__(self, *, query_dim: int, feature_dim: int, attention_dim: int) -> None:
        super().__init__()
        self.key = nn.Linear(feature_dim, attention_dim)
        self.query = nn.Linear(query_dim, attention_dim, bias=False)  # one bias is enough
        self.energy = nn.Linear(attention_dim, 1, bias=False)  # a bias would cancel in the softmax

    def keys(self, features: Tensor) -> Tensor:
        """[B, L, D] to [B, L, A]."""
        return self.key(features)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Scores [B, K, L] of queries [B, K, H] against keys [B, L, A]."""
        hidden = torch.tanh(keys.unsqueeze(1) + self.query(query).unsqueeze(2))  # [B, K, L, A]
        return self.energy(hidden).squeeze(-1)
