"""How well a cell fits the decoder's state: the paper's score, Luong's, and cosine."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from captioner.config import AttentionConfig, require_divisor
from captioner.errors import ConfigError
from captioner.models.attention.attention import Score, split_heads


class AdditiveScore(Score):
    """e_i = w . tanh(W_a a_i + W_h h), the MLP f_att of equation 4 (Bahdanau et al., 2015).

    Luong's `concat` has no bias (Luong et al., 2015, equation 8): v . tanh(W [h; a_i]) is the same
    function, with one matrix for both halves; here the cells' half is applied once per image.

    tanh(x) is computed as 2 sigmoid(2 x) - 1, whose kernel is seven times faster on a CPU; in
    float32 the two differ by 2e-7 at most.
    """

    def __init__(
        self, config: AttentionConfig, *, query_dim: int, feature_dim: int, cells: int | None = None
    ) -> None:
        require_divisor("attention.heads", config.heads, config.dim, "attention.dim")
        super().__init__(
            query=nn.Linear(query_dim, config.dim, bias=False),  # one bias is enough
            key=nn.Linear(feature_dim, config.dim, bias=config.score == "additive"),
            heads=config.heads,
        )
        self.energy = nn.Linear(config.dim, 1, bias=False)  # a bias would cancel in the softmax

    def keys(self, features: Tensor) -> Tensor:
        """Return twice the keys, so that `compare` need not double each sum."""
        return 2 * super().keys(features)

    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        # [B, heads, K, L, a], in place: it is by far the largest tensor of a step
        hidden = (keys.unsqueeze(2) + 2 * queries.unsqueeze(3)).sigmoid_()
        weight = self.energy.weight.view(self.heads, 1, 1, -1)
        # In an exported graph the product joins the sigmoid, and a sum is twice as fast as a
        # matrix product with one column.
        if self.heads == 1 and not torch.compiler.is_exporting():
            sums = self.energy(hidden).squeeze(-1)
        else:
            sums = (hidden * weight).sum(-1)
        return 2 * sums - weight.sum(-1)


class DotScore(Score):
    """e_i = (W_q h) . (W_k a_i), Luong's `dot` (2015, equation 8) with projections to one size.

    `scaled_dot` divides by the root of the size of a head (Vaswani et al., 2017, equation 1). A
    bias on the keys would cancel in the softmax.
    """

    def __init__(
        self, config: AttentionConfig, *, query_dim: int, feature_dim: int, cells: int | None = None
    ) -> None:
        require_divisor("attention.heads", config.heads, config.dim, "attention.dim")
        super().__init__(
            query=nn.Linear(query_dim, config.dim),
            key=nn.Linear(feature_dim, config.dim, bias=False),
            heads=config.heads,
        )
        self.scale = (config.dim / config.heads) ** -0.5 if config.score == "scaled_dot" else 1.0

    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        return (queries * self.scale) @ keys.transpose(-1, -2)


class GeneralScore(Score):
    """e_i = h . W a_i, Luong's `general` (2015, equation 8)."""

    def __init__(
        self, config: AttentionConfig, *, query_dim: int, feature_dim: int, cells: int | None = None
    ) -> None:
        require_divisor("attention.heads", config.heads, query_dim, "decoder.hidden_dim")
        key = nn.Linear(feature_dim, query_dim, bias=False)
        super().__init__(query=nn.Identity(), key=key, heads=config.heads)

    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ keys.transpose(-1, -2)


class CosineScore(DotScore):
    """e_i = cos(W_q h, W_k a_i) / tau, with a learned temperature tau for each head.

    Graves et al. (Neural Turing Machines, 2014, equations 5 and 6), whose key strength is 1 / tau.
    It starts at 10, as in Swin Transformer v2: cosines alone, in [-1, 1], could never make a map
    that is far from uniform.
    """

    def __init__(
        self, config: AttentionConfig, *, query_dim: int, feature_dim: int, cells: int | None = None
    ) -> None:
        super().__init__(config, query_dim=query_dim, feature_dim=feature_dim)
        self.log_strength = nn.Parameter(torch.full((config.heads,), math.log(10.0)))

    def keys(self, features: Tensor) -> Tensor:
        """Return keys of length 1."""
        return functional.normalize(super().keys(features), dim=-1)

    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        queries = functional.normalize(queries, dim=-1) * self.log_strength.exp().view(-1, 1, 1)
        return queries @ keys.transpose(-1, -2)


class LocationScore(Score):
    """e = W h, Luong's `location` (2015, section 3.1): the state alone chooses the cells.

    W has one row for each cell, so the grid must have the number of cells that it was built for.
    """

    def __init__(
        self, config: AttentionConfig, *, query_dim: int, feature_dim: int, cells: int | None = None
    ) -> None:
        if cells is None:
            raise ConfigError("attention.score: location needs to know the number of cells")
        query = nn.Linear(query_dim, config.heads * cells)
        super().__init__(query=query, key=nn.Identity(), heads=config.heads)
        self.cells = cells

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
