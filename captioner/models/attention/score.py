"""How well each cell of the grid fits the decoder's state."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from captioner.errors import ConfigError
from captioner.runtime.linear import Linear, StepLinear


class Score(nn.Module, ABC):
    """A query's part, the cells' part (the keys, computed once a photo), and their comparison.

    With several heads, queries and keys are cut into as many parts of size a, and each part is
    compared alone (Vaswani et al., 2017, section 3.2.2).

    query: module from [B, K, H] to [B, K, heads * a]; key: from [B, L, D] to [B, L, heads * a].
    """

    def __init__(self, query: nn.Module, key: nn.Module, *, heads: int = 1) -> None:
        super().__init__()
        self.query = query
        self.key = key
        self.heads = heads

    def keys(self, features: Tensor) -> Tensor:
        """Annotation vectors [B, L, D] to keys [B, heads, L, a]."""
        return split_heads(self.key(features), self.heads)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Scores [B, heads, K, L] of queries [B, K, H] against keys [B, heads, L, a]."""
        return self.compare(split_heads(self.query(query), self.heads), keys)

    @abstractmethod
    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Scores [B, heads, K, L] of queries [B, heads, K, a] and keys [B, heads, L, a]."""


def split_heads(vectors: Tensor, heads: int) -> Tensor:
    """[B, n, heads * a] to [B, heads, n, a]."""
    return vectors.unflatten(-1, (heads, -1)).transpose(1, 2)


class AdditiveScore(Score):
    """e_i = w . tanh(W_a a_i + W_h h), the MLP f_att of equation 4 (Bahdanau et al., 2015).

    `bias=False` gives Luong's `concat` (Luong et al., 2015, equation 8): v . tanh(W [h; a_i]) is
    the same function, its one matrix held as the two halves that meet h and a_i, because the
    cells' half is computed once a photo.

    tanh(x) is computed as 2 sigmoid(2 x) - 1, whose kernel is seven times faster on a CPU; in
    float32 the two differ by 2e-7 at most.
    """

    def __init__(
        self,
        *,
        query_dim: int,
        feature_dim: int,
        attention_dim: int,
        heads: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(
            query=StepLinear(query_dim, attention_dim, bias=False),  # one bias is enough
            key=Linear(feature_dim, attention_dim, bias=bias),
            heads=heads,
        )
        self.energy = nn.Linear(attention_dim, 1, bias=False)  # a bias would cancel in the softmax

    def keys(self, features: Tensor) -> Tensor:
        """Twice the keys, once a photo, for the sigmoid's sake."""
        return 2 * super().keys(features)

    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        # [B, heads, K, L, a], in place: it is by far the largest tensor of a step
        hidden = (keys.unsqueeze(2) + 2 * queries.unsqueeze(3)).sigmoid_()
        weight = self.energy.weight.view(self.heads, 1, 1, -1)
        sums = self.energy(hidden).squeeze(-1) if self.heads == 1 else (hidden * weight).sum(-1)
        return 2 * sums - weight.sum(-1)


class DotScore(Score):
    """e_i = (W_q h + b) . (W_k a_i), Luong's `dot` (2015, equation 8) in a common space of size A.

    Luong compares vectors of one size without projections, which is the case of two identities; a
    CNN's D and an LSTM's H differ. `scaled` divides by the root of the size of a head (Vaswani et
    al., 2017, equation 1). A bias on the keys would cancel in the softmax.
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
            query=StepLinear(query_dim, attention_dim),
            key=Linear(feature_dim, attention_dim, bias=False),
            heads=heads,
        )
        self.scale = (attention_dim / heads) ** -0.5 if scaled else 1.0

    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        return (queries * self.scale) @ keys.transpose(-1, -2)


class GeneralScore(Score):
    """e_i = h . W a_i, Luong's `general` (2015, equation 8)."""

    def __init__(self, *, query_dim: int, feature_dim: int, heads: int = 1) -> None:
        super().__init__(
            query=nn.Identity(),
            key=Linear(feature_dim, query_dim, bias=False),
            heads=heads,
        )

    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ keys.transpose(-1, -2)


class CosineScore(Score):
    """e_i = cos(W_q h, W_k a_i) / tau, with a learned temperature tau a head.

    Graves et al. (Neural Turing Machines, 2014, equations 5 and 6), whose key strength is 1 / tau.
    It begins at 10, as in Swin Transformer v2: cosines alone, in [-1, 1], could never make a map
    that is far from uniform.
    """

    def __init__(
        self, *, query_dim: int, feature_dim: int, attention_dim: int, heads: int = 1
    ) -> None:
        super().__init__(
            query=StepLinear(query_dim, attention_dim),
            key=Linear(feature_dim, attention_dim, bias=False),
            heads=heads,
        )
        self.log_strength = nn.Parameter(torch.full((heads,), math.log(10.0)))

    def keys(self, features: Tensor) -> Tensor:
        return functional.normalize(super().keys(features), dim=-1)

    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        queries = functional.normalize(queries, dim=-1) * self.log_strength.exp().view(-1, 1, 1)
        return queries @ keys.transpose(-1, -2)


class LocationScore(Score):
    """e = W h, Luong's `location` (2015, section 3.1): where to look without looking.

    It has one row a cell, so the grid must have the number of cells that it was built for.
    """

    def __init__(self, *, query_dim: int, cells: int, heads: int = 1) -> None:
        super().__init__(
            query=StepLinear(query_dim, heads * cells),
            key=nn.Identity(),
            heads=heads,
        )
        self.cells = cells

    def keys(self, features: Tensor) -> Tensor:
        """No numbers: keys [B, heads, L, 0].

        Raises:
            ConfigError: the grid has another number of cells.
        """
        if features.shape[1] != self.cells:
            raise ConfigError(
                f"attention.score: location was built for a grid of {self.cells} cells and met one "
                f"of {features.shape[1]}; keep preprocess.height_px and width_px, or use another "
                "score"
            )
        return split_heads(features[..., :0], 1).expand(-1, self.heads, -1, -1)

    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries
