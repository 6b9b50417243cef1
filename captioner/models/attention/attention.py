"""Attention in three exchangeable stages, score, window and select, with those of the paper.

Other scores, and windows of some cells, are in `scores`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from captioner.config import AttentionConfig, require_divisor
from captioner.models.attention.fused import fused_scores
from captioner.models.attention.self_attention import smoothed
from captioner.registry import SCORES, SELECTS, WINDOWS
from captioner.runtime.draws import child_seeds, uniform
from captioner.types import AttentionOutput, Grid


def indexed_tensors(value: Any, index: Any) -> dict[str, Tensor]:
    """Return the fields of a dataclass that are tensors, by name, each indexed."""
    # not vars(value), which torch.compile of PyTorch 2.11 cannot read
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    return {name: part[index] for name, part in found.items() if isinstance(part, Tensor)}


@dataclass(frozen=True)
class Memory:
    """Everything that attention computes of a batch of grids, once per image."""

    grid: Grid  # the cells that contexts are made of, features [B, L, D]
    keys: Tensor  # [B, heads, L, A / heads], compared with the query by the score
    values: Tensor | None = None  # [B, heads, L, D / heads]; None where the cells are the values
    use_expectation: Tensor | None = None  # bool [B], images that take the expectation (HardSelect)
    seeds: Tensor | None = None  # int64 [B], of HardSelect's draws; None: PyTorch's own generator

    def select(self, index: Tensor | slice, seeds: Tensor | None = None) -> Memory:
        """Return the memory of the images of `index`, [B'] or a slice, perhaps with new seeds."""
        parts: dict[str, Any] = indexed_tensors(self, index)
        if seeds is not None:
            parts["seeds"] = seeds
        grid = replace(self.grid, features=self.grid.features[index])
        return replace(self, grid=grid, **parts)


class Score(nn.Module):
    """Rates how well each cell fits the decoder's state: the dot product, unless overridden.

    Heads compare parts of size A / heads (Vaswani et al., 2017, section 3.2.2). Subclasses are
    built from the settings, `query_dim` (H), `feature_dim` (D) and, for `location`, `cells` (L).

    Args:
        query: Module from [B, K, H] to [B, K, A].
        key: Module from [B, L, D] to [B, L, A], applied once per image.
    """

    def __init__(self, query: nn.Module, key: nn.Module, *, heads: int = 1) -> None:
        super().__init__()
        self.query, self.key, self.heads = query, key, heads

    def keys(self, features: Tensor) -> Tensor:
        """Map annotation vectors [B, L, D] to keys [B, heads, L, A / heads]."""
        return split_heads(self.key(features), self.heads)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Return scores [B, heads, K, L] of queries [B, K, H]."""
        return self.compare(split_heads(self.query(query), self.heads), keys)

    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Compare queries [B, heads, K, a] with keys [B, heads, L, a]: [B, heads, K, L]."""
        return queries @ keys.transpose(-1, -2)


class AdditiveScore(Score):
    """e_i = w . tanh(W_a a_i + W_h h), the MLP f_att of equation 4 (Bahdanau et al., 2015).

    Luong's `concat` (2015, equation 8), v . tanh(W [h; a_i]), is the same without the bias.

    tanh(x) is computed as 2 sigmoid(2 x) - 1, whose kernel is seven times faster on a CPU; in
    float32 the two differ by 2e-7 at most.
    """

    def __init__(self, config: AttentionConfig, *, query_dim: int, feature_dim: int) -> None:
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
        weight = self.energy.weight.view(self.heads, 1, 1, -1)
        if keys.is_cuda and (fused := fused_scores(keys)) is not None:
            return fused(queries, keys, weight)
        # [B, heads, K, L, a], in place: it is by far the largest tensor of a step
        hidden = (keys.unsqueeze(2) + 2 * queries.unsqueeze(3)).sigmoid_()
        # In an exported graph the product joins the sigmoid, and a sum is twice as fast as a
        # matrix product with one column.
        if self.heads == 1 and not torch.compiler.is_exporting():
            sums = self.energy(hidden).squeeze(-1)
        else:
            sums = (hidden * weight).sum(-1)
        return 2 * sums - weight.sum(-1)


class Window(nn.Module):
    """The cells that may be attended to: all of them, as in the paper, unless overridden.

    Built from the settings and `query_dim` (H). `forward(query, grid, position)` returns the bias
    on the scores, [B, K, L] in log space, -inf outside of the window; None for no bias. A bias
    before the softmax, instead of a factor after it (Luong et al., 2015, equation 10), keeps the
    map a distribution. query is the decoder's state [B, K, H], position the number of the word to
    be written, from 0: one for all, or [K].
    """

    def __init__(self, config: AttentionConfig, *, query_dim: int) -> None:
        super().__init__()
        self.config = config

    def forward(self, query: Tensor, grid: Grid, position: int | Tensor) -> Tensor | None:
        return None


class Select(nn.Module):
    """Turns scores into a distribution over the cells, and that into a context.

    `forward(scores, values, use_expectation, seeds)` attends by scores [B, K, L] to values
    [B, L, D]; several heads make both [B, heads, ...]. use_expectation, bool [B], says which images
    take the expectation in place of a sample; seeds, int64 [B, K], are those of the sampled cells.
    None takes PyTorch's own generator.
    """

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.config = config

    def distribution(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the map's logarithm [B, K, L], the map, and its entropy [B, K] in nats."""
        # at least float32: maps sum to 1 under autocast too
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if self.config.temperature != 1:
            scores = scores / self.config.temperature
        log_map = torch.log_softmax(scores, dim=-1)
        weights = log_map.exp()
        # a cell outside of the window has log 0 and adds nothing
        entropy = -(weights * log_map.masked_fill(weights == 0, 0.0)).sum(-1)
        return log_map, weights, entropy


class SoftSelect(Select):
    """Deterministic soft attention: the expectation of the context (equations 5, 6 and 13)."""

    def forward(self, scores: Tensor, values: Tensor, *_: Any, **__: Any) -> AttentionOutput:
        weights, entropy = self.distribution(scores)[1:]
        context = torch.matmul(weights.to(values.dtype), values)  # not @: `shared_gradients`
        return AttentionOutput(context, weights, entropy, log_prob=torch.zeros_like(entropy))


class HeadValues(nn.Module):
    """Projects values for several heads, and the heads' contexts back to one vector.

    W_V and W_O of multi-head attention (Vaswani et al., 2017, section 3.2.2).
    """

    def __init__(self, feature_dim: int, context_dim: int, *, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.value = nn.Linear(feature_dim, feature_dim)
        self.output = nn.Linear(feature_dim, context_dim)


class Attention(nn.Module):
    """score -> window -> select, as the settings name them.

    K hypotheses of an image (beams, or words that a Transformer reads at once) share its memory.
    Of several heads, each attends on its own to projected values; the map of a word is the mean
    over the heads, and with hard attention each head samples a cell.

    Args:
        query_dim, feature_dim, cells: H, D, and L, which only the score `location` needs.
        context_dim: Size to which contexts are projected; None: one head makes them of the
            annotation vectors themselves, as in the paper.
    """

    def __init__(
        self,
        config: AttentionConfig,
        *,
        query_dim: int,
        feature_dim: int,
        cells: int | None = None,
        context_dim: int | None = None,
    ) -> None:
        super().__init__()
        sizes: dict[str, Any] = {"query_dim": query_dim, "feature_dim": feature_dim}
        more = {"cells": cells} if config.score == "location" else {}
        self.score: Score = SCORES[config.score](config, **sizes, **more)
        self.window: Window = WINDOWS[config.window](config, query_dim=query_dim)
        self.select: Select = SELECTS[config.select](config)
        self.values: HeadValues | None = None
        heads = config.heads
        if heads > 1 or context_dim is not None:
            name = "D, the size of a cell's vector,"
            require_divisor("attention.heads", heads, feature_dim, name)
            self.values = HeadValues(feature_dim, context_dim or feature_dim, heads=heads)
        # The decoder's first state is made of local values, too.
        self.local, self.key_smoothing = config.values == "local", config.key_smoothing

    def prepare(self, grid: Grid) -> Memory:
        """Compute keys, and with several heads values, of B grids, once per image."""
        cells = grid.local if self.local and grid.local is not None else grid.features
        if torch.is_autocast_enabled(cells.device.type) and cells.dtype == torch.float32:
            # Once here: autocast would cast all cells again for every word.
            cells = cells.to(torch.get_autocast_dtype(cells.device.type))
        values = use_expectation = None
        if self.values is not None:
            values = split_heads(self.values.value(cells), self.values.heads).contiguous()
        if self.training and grid.seeds is not None:
            settings = self.select.config
            share = settings.semi_sampling if settings.select == "hard" else 0.0
            use_expectation = uniform(grid.seeds, 1).squeeze(-1) < share if share else None
        compared = smoothed(grid, self.key_smoothing) if self.key_smoothing else grid.features
        return Memory(
            Grid(cells, grid.height, grid.width, at_random=grid.at_random),
            self.score.keys(compared),
            values=values,
            use_expectation=use_expectation,
        )

    def forward(self, query: Tensor, memory: Memory, position: int | Tensor) -> AttentionOutput:
        """Attend once: queries [B, K, H] of words at `position` (int or [K]), which seeds draws."""
        scores = self.score(query, memory.keys)  # [B, heads, K, L]
        bias = self.window(query, memory.grid, position)
        if bias is not None:
            scores = scores + bias.unsqueeze(1)
        if memory.grid.at_random:  # all cells of the window alike, whatever its Gaussian prefers
            scores = scores.masked_fill(scores > -torch.inf, 0.0)
        seeds, use_expectation = memory.seeds, memory.use_expectation
        heads = scores.shape[1]
        if memory.values is not None and seeds is not None:  # one for each head: [B, heads]
            seeds = child_seeds(seeds.unsqueeze(1), torch.arange(heads, device=seeds.device))
        if seeds is not None:  # one for each word: [..., 1] or [..., K]
            seeds = child_seeds(seeds.unsqueeze(-1), position)
        if self.values is None or memory.values is None:
            return self.select(scores.squeeze(1), memory.grid.features, use_expectation, seeds)
        attended = self.select(scores, memory.values, use_expectation, seeds)
        maps = attended.weights.transpose(1, 2)  # [B, K, heads, L]
        cells = None if attended.cells is None else attended.cells.transpose(1, 2)
        return AttentionOutput(
            context=self.values.output(attended.context.transpose(1, 2).flatten(-2)),
            weights=maps.mean(2),
            entropy=attended.entropy.mean(1),
            # heads sample independently given the state
            log_prob=attended.log_prob.sum(1),
            cells=cells.squeeze(-1) if cells is not None and heads == 1 else cells,
            heads=maps.unsqueeze(2) if heads > 1 else None,
        )


def split_heads(vectors: Tensor, heads: int) -> Tensor:
    """Map [B, n, heads * a] to [B, heads, n, a]."""
    return vectors.unflatten(-1, (heads, -1)).transpose(1, 2)
