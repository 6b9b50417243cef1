"""A Transformer decoder that looks at the grid in every layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from captioner.errors import ConfigError
from captioner.models.attention import Attention, Memory
from captioner.models.attention.score import split_heads
from captioner.models.decoders.base import Decoder, TeacherForcingOutput, add_style, pack_by_step
from captioner.runtime.linear import Linear
from captioner.types import AttentionOutput, Grid


@dataclass(frozen=True)
class LayeredMemory:
    """A grid with what the attention of every layer needs of it."""

    grid: Grid
    layers: tuple[Memory, ...]

    def select(self, index: Tensor | slice) -> LayeredMemory:
        grid = Grid(self.grid.features[index], self.grid.height, self.grid.width)
        return LayeredMemory(grid, tuple(layer.select(index) for layer in self.layers))


class Cache(NamedTuple):
    """Keys and values of the words read so far: [B, K, layers, heads, T, H / heads] each."""

    keys: Tensor
    values: Tensor

    @property
    def position(self) -> int:
        return self.keys.shape[-2]


class SelfAttention(nn.Module):
    """Masked multi-head self-attention (Vaswani et al., 2017, section 3.2.3)."""

    def __init__(self, *, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query = Linear(dim, dim)
        self.key = Linear(dim, dim)
        self.value = Linear(dim, dim)
        self.output = Linear(dim, dim)

    def forward(self, words: Tensor) -> Tensor:
        """Every word of [N, T, H] looks at itself and at those before."""
        return self._look(
            words, self.split(self.key(words)), self.split(self.value(words)), causal=True
        )

    def split(self, words: Tensor) -> Tensor:
        """[N, T, H] to [N, heads, T, H / heads]."""
        return split_heads(words, self.heads)

    def last(self, word: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """The last word, [N, 1, H], looks at all keys and values, [N, heads, T, H / heads]."""
        return self._look(word, keys, values, causal=False)

    def _look(self, words: Tensor, keys: Tensor, values: Tensor, *, causal: bool) -> Tensor:
        seen = functional.scaled_dot_product_attention(
            self.split(self.query(words)),
            keys,
            values,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=causal,
        )
        return self.output(seen.transpose(1, 2).flatten(-2))


class TransformerLayer(nn.Module):
    """Self-attention, attention to the grid, feed-forward, each with a residual and a norm."""

    def __init__(
        self,
        attention: Attention,
        *,
        dim: int,
        heads: int,
        feedforward_dim: int,
        pre_norm: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.self_attention = SelfAttention(dim=dim, heads=heads, dropout=dropout)
        self.attention = attention
        self.feedforward = nn.Sequential(
            Linear(dim, feedforward_dim),
            nn.ReLU(),
            nn.Dropout(dropout),
            Linear(feedforward_dim, dim),
        )
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.dropout = nn.Dropout(dropout)
        self.pre_norm = pre_norm

    def enter(self, words: Tensor, part: int) -> Tensor:
        """What sub-layer `part` reads: pre-norm normalises it."""
        return self.norms[part](words) if self.pre_norm else words

    def leave(self, words: Tensor, found: Tensor, part: int) -> Tensor:
        """The residual around sub-layer `part`: post-norm, as in the paper, normalises the sum."""
        total = words + self.dropout(found)
        return total if self.pre_norm else self.norms[part](total)

    def look(
        self, words: Tensor, memory: Memory, position: int | Tensor
    ) -> tuple[Tensor, AttentionOutput]:
        """The sub-layers after self-attention, for words [B, K, H]."""
        attended = self.attention(self.enter(words, 1), memory, position)
        words = self.leave(words, attended.context, 1)
        return self.leave(words, self.feedforward(self.enter(words, 2)), 2), attended


class TransformerDecoder(Decoder):
    """Vaswani et al., 2017, section 3.1, with the grid's cells in the place of the encoder's words.

    Attention to the grid is the same score -> window -> select as everywhere, one a layer
    (`attentions`), each with values projected to the decoder's size H. The map of a word is the
    mean over the heads of the last layer; `AttentionOutput.heads` has those of all layers.
    Embeddings are scaled by the root of H (section 3.4). Pre-norm adds a last norm. With hard
    attention each layer samples its own cells, and draws for itself which photos take the
    expectation.
    """

    def __init__(
        self,
        attentions: Sequence[Attention],
        *,
        vocabulary_size: int,
        hidden_dim: int,
        heads: int,
        feedforward_dim: int,
        positions: Literal["sinusoidal", "learned"] = "sinusoidal",
        max_positions: int = 64,
        pre_norm: bool = True,
        tie_embeddings: bool = False,
        dropout: float = 0.1,
        embed_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.vocabulary_size = vocabulary_size
        self.embedding = nn.Embedding(vocabulary_size, hidden_dim, padding_idx=0)
        self.positions = nn.Embedding(max_positions, hidden_dim) if positions == "learned" else None
        self.embed_dropout = nn.Dropout(embed_dropout)
        self.layers = nn.ModuleList(
            TransformerLayer(
                attention,
                dim=hidden_dim,
                heads=heads,
                feedforward_dim=feedforward_dim,
                pre_norm=pre_norm,
                dropout=dropout,
            )
            for attention in attentions
        )
        self.norm = nn.LayerNorm(hidden_dim) if pre_norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.vocabulary = Linear(hidden_dim, vocabulary_size)
        if tie_embeddings:
            self.vocabulary.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=hidden_dim**-0.5)
        with torch.no_grad():
            self.embedding.weight[0].zero_()
            self.vocabulary.bias.zero_()

    def prepare(self, grid: Grid) -> LayeredMemory:
        # Layers look at their own values: without the features, to select photos copies less.
        empty = Grid(grid.features[..., :0], grid.height, grid.width)
        memories = (layer.attention.prepare(grid) for layer in self._layers())
        return LayeredMemory(grid, tuple(replace(memory, grid=empty) for memory in memories))

    def start(self, memory: LayeredMemory, beams: int = 1) -> Cache:
        heads = self._layers()[0].self_attention.heads
        size = self.embedding.embedding_dim // heads
        photos = len(memory.grid.features)
        empty = self.embedding.weight.new_zeros(photos, beams, len(self.layers), heads, 0, size)
        return Cache(empty, empty)

    def step(
        self, tokens: Tensor, state: Cache, memory: LayeredMemory
    ) -> tuple[Tensor, AttentionOutput, Cache]:
        position = state.position
        words = self._embed(tokens, torch.full((1,), position, device=tokens.device), position)
        keys, values, attended_words = [], [], []
        for number, layer in enumerate(self._layers()):
            attention = layer.self_attention
            entered = layer.enter(words, 0).flatten(0, 1).unsqueeze(1)  # [B * K, 1, H]
            new = (attention.key(entered), attention.value(entered))
            grown = [
                torch.cat([before[:, :, number].flatten(0, 1), attention.split(now)], dim=2)
                for before, now in zip(state, new, strict=True)
            ]  # [B * K, heads, T, H / heads]
            found = attention.last(entered, *grown)
            keys.append(grown[0].unflatten(0, tokens.shape))
            values.append(grown[1].unflatten(0, tokens.shape))
            words = layer.leave(words, found.view_as(words), 0)
            words, attended = layer.look(words, memory.layers[number], position)
            attended_words.append(attended)
        cache = Cache(torch.stack(keys, dim=2), torch.stack(values, dim=2))
        return self._readout(words), _together(attended_words), cache

    def reorder(self, state: Cache, photos: Tensor, beams: Tensor) -> Cache:
        rows = photos.unsqueeze(1)
        return Cache(state.keys[rows, beams], state.values[rows, beams])

    def forward(
        self, memory: LayeredMemory, tokens: Tensor, lengths: Tensor, style: Tensor | None = None
    ) -> TeacherForcingOutput:
        longest = int(lengths.max())
        steps = torch.arange(longest)
        running = (steps < lengths.unsqueeze(1)).to(tokens.device, non_blocking=True)  # [N, T]
        position = steps.to(tokens.device, non_blocking=True)
        words = self._embed(tokens[:, :longest], position, longest - 1, style)  # [N, T, H]
        attended_words, queries = [], []
        for layer, layer_memory in zip(self._layers(), memory.layers, strict=True):
            # A caption is padded at its end only, which no earlier word looks at.
            words = layer.leave(words, layer.self_attention(layer.enter(words, 0)), 0)
            queries.append(words)
            words, attended = layer.look(words, layer_memory, position)
            attended_words.append(attended)
        attended = _together(attended_words)
        return TeacherForcingOutput(
            logits=self._readout(pack_by_step(words, lengths)),
            maps=attended.weights * running.unsqueeze(-1),
            entropy=attended.entropy * running,
            log_prob=attended.log_prob * running,
            beta=None,
            # a later layer's state knows what the first one sampled, as no baseline may
            queries=pack_by_step(queries[0], lengths).detach(),
            cells=attended.cells,
        )

    def _layers(self) -> list[TransformerLayer]:
        return list(self.layers)  # type: ignore[arg-type]  # a ModuleList does not know of what

    def _embed(
        self, tokens: Tensor, position: Tensor, last: int, style: Tensor | None = None
    ) -> Tensor:
        """Tokens [B, n] at positions [n] or [1], of which `last` is the largest."""
        dim = self.embedding.embedding_dim
        words = add_style(self.embedding(tokens), style) * math.sqrt(dim)
        if self.positions is None:
            places = sinusoidal_positions(position, dim).to(words.dtype)
        elif last >= self.positions.num_embeddings:
            raise ConfigError(
                f"decoder.max_positions: this model has {self.positions.num_embeddings} learned "
                "positions, so its captions cannot be longer; lower max_words"
            )
        else:
            places = self.positions(position)
        return self.embed_dropout(words + places)

    def _readout(self, words: Tensor) -> Tensor:
        return self.vocabulary(self.dropout(self.norm(words)))


def sinusoidal_positions(position: Tensor, dim: int) -> Tensor:
    """Positions [n] to [n, dim]: sines in the even places, cosines in the odd ones.

    Vaswani et al., 2017, section 3.5.
    """
    rates = torch.exp(
        torch.arange(0, dim, 2, device=position.device) * (-math.log(10000.0) / dim)
    )  # [ceil(dim / 2)]
    angles = position.unsqueeze(-1) * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :dim]


def _together(attended_words: Sequence[AttentionOutput]) -> AttentionOutput:
    """Join the layers: the last one's output, all maps, and the probability of all samples."""
    last = attended_words[-1]
    heads = last.heads
    if heads is not None:
        heads = torch.cat(
            [attended.heads for attended in attended_words if attended.heads is not None],
            2,
        )
    elif len(attended_words) > 1:
        heads = torch.stack([attended.weights for attended in attended_words], dim=2).unsqueeze(3)
    return replace(
        last,
        log_prob=torch.stack([attended.log_prob for attended in attended_words]).sum(0),
        entropy=torch.stack([attended.entropy for attended in attended_words]).mean(0),
        heads=heads,
    )
