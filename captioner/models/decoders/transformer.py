"""A Transformer decoder that attends to the grid in every layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from captioner.config import DecoderConfig, require_divisor
from captioner.data.batch import pack_by_step, word_mask
from captioner.errors import ConfigError
from captioner.models.attention.attention import Attention, Memory, split_heads
from captioner.models.decoders.base import AttentionFactory, Decoder, TeacherForcingOutput
from captioner.runtime.draws import child_seeds
from captioner.types import AttentionOutput, Grid


@dataclass(frozen=True)
class LayeredMemory:
    """What the attention of every layer needs of a batch of grids."""

    layers: tuple[Memory, ...]

    def select(self, index: Tensor | slice, seeds: Tensor | None = None) -> LayeredMemory:
        """Return the memory of the images of `index`, [B'] or a slice, perhaps with new seeds."""
        layers = (
            layer.select(index, None if seeds is None else child_seeds(seeds, number))
            for number, layer in enumerate(self.layers)
        )
        return LayeredMemory(tuple(layers))


class Cache(NamedTuple):
    """Keys and values of the words read so far: [B, K, layers, heads, T, H / heads] each."""

    keys: Tensor
    values: Tensor


class SelfAttention(nn.Module):
    """Masked multi-head self-attention (Vaswani et al., 2017, section 3.2.3)."""

    def __init__(self, *, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)

    def forward(
        self, words: Tensor, earlier: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Let every word attend to itself and to those before.

        Args:
            words: [N, T, H]; one word (T = 1) where `earlier` is given.
            earlier: Keys and values of the words before these, [N, heads, T', H / heads] each.

        Returns:
            [N, T, H], and the keys and values of all words.
        """
        projections = self.query, self.key, self.value
        query, keys, values = (split_heads(each(words), self.heads) for each in projections)
        if earlier is not None:
            keys = torch.cat([earlier[0], keys], dim=2)
            values = torch.cat([earlier[1], values], dim=2)
        dropout = self.dropout if self.training else 0.0
        attended = functional.scaled_dot_product_attention(
            query, keys, values, dropout_p=dropout, is_causal=earlier is None
        )
        return self.output(attended.transpose(1, 2).flatten(-2)), keys, values


class TransformerLayer(nn.Module):
    """Self-attention, attention to the grid, feed-forward, each with a residual and a norm."""

    def __init__(self, config: DecoderConfig, attention: Attention) -> None:
        super().__init__()
        dim, dropout = config.hidden_dim, config.dropout
        self.self_attention = SelfAttention(dim=dim, heads=config.heads, dropout=dropout)
        self.attention = attention
        self.feedforward = nn.Sequential(
            nn.Linear(dim, config.feedforward_dim),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(config.feedforward_dim, dim),
        )
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.dropout = nn.Dropout(dropout)
        self.pre_norm = config.pre_norm

    def before(self, words: Tensor, part: int) -> Tensor:
        """Return the input of sub-layer `part`, normalised with pre-norm."""
        return self.norms[part](words) if self.pre_norm else words

    def after(self, words: Tensor, change: Tensor, part: int) -> Tensor:
        """Add the residual around sub-layer `part`, normalised with post-norm as in the paper."""
        total = words + self.dropout(change)
        return total if self.pre_norm else self.norms[part](total)

    def attend(
        self, words: Tensor, memory: Memory, position: int | Tensor
    ) -> tuple[Tensor, AttentionOutput]:
        """Apply the sub-layers after self-attention to words [B, K, H]."""
        attended = self.attention(self.before(words, 1), memory, position)
        words = self.after(words, attended.context, 1)
        return self.after(words, self.feedforward(self.before(words, 2)), 2), attended


class TransformerDecoder(Decoder):
    """Vaswani et al., 2017, section 3.1, with the grid's cells in place of the encoder's words.

    Attention to the grid is the same score -> window -> select as in the other decoders, one per
    layer, with values projected to the decoder's size H. The map of a word is the mean over the
    heads of the last layer. Embeddings are scaled by the root of H (section 3.4). Pre-norm adds a
    last norm. With hard attention, each layer draws on its own.
    """

    def __init__(
        self,
        config: DecoderConfig,
        attend: AttentionFactory,
        *,
        vocabulary_size: int,
        feature_dim: int,
    ) -> None:
        super().__init__()
        dim, learned = config.hidden_dim, config.positions == "learned"
        require_divisor("decoder.heads", config.heads, dim, "decoder.hidden_dim")
        attentions = [attend(context_dim=dim) for _ in range(config.layers)]
        self.embedding = nn.Embedding(vocabulary_size, dim, padding_idx=0)
        self.positions = nn.Embedding(config.max_positions, dim) if learned else None
        self.embed_dropout = nn.Dropout(config.embed_dropout)
        self.layers = nn.ModuleList(TransformerLayer(config, each) for each in attentions)
        self.norm = nn.LayerNorm(dim) if config.pre_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.vocabulary = nn.Linear(dim, vocabulary_size)
        self.init_words(tie=config.tie_embeddings)

    def prepare(self, grid: Grid) -> LayeredMemory:
        # Layers have values of their own: without the features, selecting images copies less.
        empty = replace(grid, features=grid.features[..., :0], local=None, seeds=None)
        memories = []
        for number, layer in enumerate(self._layers()):
            seeds = None if grid.seeds is None else child_seeds(grid.seeds, number)
            memories.append(layer.attention.prepare(replace(grid, seeds=seeds)))
        return LayeredMemory(tuple(replace(memory, grid=empty) for memory in memories))

    def start(self, memory: LayeredMemory, beams: int = 1) -> Cache:
        heads = self._layers()[0].self_attention.heads
        size = self.embedding.embedding_dim // heads
        images = memory.layers[0].keys.shape[0]
        empty = self.embedding.weight.new_zeros(images, beams, len(self.layers), heads, 0, size)
        return Cache(empty, empty)

    def step(
        self, tokens: Tensor, state: Cache, memory: LayeredMemory
    ) -> tuple[Tensor, AttentionOutput, Cache]:
        position = state.keys.shape[-2]
        words = self._embed(tokens, torch.full((1,), position, device=tokens.device), position)
        keys, values, attended_layers = [], [], []
        for number, layer in enumerate(self._layers()):
            change, *all_words = layer.self_attention(
                layer.before(words, 0).flatten(0, 1).unsqueeze(1),  # [B * K, 1, H]
                (state.keys[:, :, number].flatten(0, 1), state.values[:, :, number].flatten(0, 1)),
            )
            keys.append(all_words[0].unflatten(0, tokens.shape))
            values.append(all_words[1].unflatten(0, tokens.shape))
            words = layer.after(words, change.view_as(words), 0)
            words, attended = layer.attend(words, memory.layers[number], position)
            attended_layers.append(attended)
        cache = Cache(torch.stack(keys, dim=2), torch.stack(values, dim=2))
        return self._logits(words), _join_layers(attended_layers), cache

    def reorder(self, state: Cache, images: Tensor, beams: Tensor) -> Cache:
        rows = images.unsqueeze(1)
        return Cache(state.keys[rows, beams], state.values[rows, beams])

    def forward(
        self, memory: LayeredMemory, tokens: Tensor, lengths: Tensor
    ) -> TeacherForcingOutput:
        running = word_mask(lengths).to(tokens.device, non_blocking=True)  # [N, T]
        longest = running.shape[1]
        position = torch.arange(longest, device=tokens.device)
        words = self._embed(tokens[:, :longest], position, longest - 1)  # [N, T, H]
        attended_layers = []
        for layer, layer_memory in zip(self._layers(), memory.layers, strict=True):
            # A caption is padded at its end only, to which no earlier word attends.
            words = layer.after(words, layer.self_attention(layer.before(words, 0))[0], 0)
            words, attended = layer.attend(words, layer_memory, position)
            attended_layers.append(attended)
        attended = _join_layers(attended_layers)
        return TeacherForcingOutput(
            logits=self._logits(pack_by_step(words, lengths)),
            maps=attended.weights * running.unsqueeze(-1),
            entropy=attended.entropy * running,
            log_prob=attended.log_prob * running,
            beta=None,
        )

    def _layers(self) -> list[TransformerLayer]:
        return list(self.layers)  # type: ignore[arg-type]  # a ModuleList of unknown modules

    def _embed(self, tokens: Tensor, position: Tensor, last: int) -> Tensor:
        """Embed tokens [N, T] at positions [T] or [1], of which `last` is the largest."""
        dim = self.embedding.embedding_dim
        words = self.embedding(tokens) * math.sqrt(dim)
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

    def _logits(self, words: Tensor) -> Tensor:
        return self.vocabulary(self.dropout(self.norm(words)))


def sinusoidal_positions(position: Tensor, dim: int) -> Tensor:
    """Encode positions [n] as sines and cosines in turn, [n, dim] (Vaswani et al., 2017, 3.5)."""
    even = torch.arange(0, dim, 2, device=position.device)
    rates = torch.exp(even * (-math.log(10000.0) / dim))  # [ceil(dim / 2)]
    angles = position.unsqueeze(-1) * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :dim]


def _join_layers(attended_layers: Sequence[AttentionOutput]) -> AttentionOutput:
    """Join the layers: the last one's output, all maps, and the probability of all samples."""
    last = attended_layers[-1]
    heads = [attended.heads for attended in attended_layers if attended.heads is not None]
    if not heads and len(attended_layers) > 1:  # of one head each
        heads = [attended.weights[:, :, None, None] for attended in attended_layers]
    return replace(
        last,
        log_prob=torch.stack([attended.log_prob for attended in attended_layers]).sum(0),
        entropy=torch.stack([attended.entropy for attended in attended_layers]).mean(0),
        heads=torch.cat(heads, dim=2) if heads else None,
    )
