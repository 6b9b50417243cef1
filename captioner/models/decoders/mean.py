"""The bottleneck that attention removes: one vector for the whole photo."""

from __future__ import annotations

import torch
from torch import Tensor

from captioner.models.attention import Memory, uniform_glimpse
from captioner.models.decoders.recurrent import LSTMState, RecurrentDecoder
from captioner.runtime.linear import Linear
from captioner.types import AttentionOutput, Grid


class MeanDecoder(RecurrentDecoder):
    """Show and Tell (Vinyals et al., 2015, section 3.1): no attention.

    The LSTM starts from zero and reads the projected mean annotation vector in the place of a first
    word (equation 10), then the words, and never the photo again. Its maps are uniform.
    """

    def __init__(
        self,
        *,
        vocabulary_size: int,
        feature_dim: int,
        hidden_dim: int,
        embed_dim: int,
        tie_embeddings: bool = False,
        dropout: float = 0.5,
        embed_dropout: float = 0.0,
    ) -> None:
        super().__init__(
            vocabulary_size=vocabulary_size,
            hidden_dim=hidden_dim,
            embed_dim=embed_dim,
            input_dim=0,
            output_dim=embed_dim,
            tie_embeddings=tie_embeddings,
            dropout=dropout,
            embed_dropout=embed_dropout,
        )
        self.photo = Linear(feature_dim, embed_dim)
        self.from_h = Linear(hidden_dim, embed_dim)

    def prepare(self, grid: Grid) -> Memory:
        return Memory(grid, keys=grid.features[..., :0].unsqueeze(1))

    def start(self, memory: Memory, beams: int = 1) -> LSTMState:
        photo = self.photo(memory.grid.features.mean(1, keepdim=True))  # [B, 1, E]
        zero = photo.new_zeros(len(photo), 1, self.word_gates.out_features // 4)
        state = self._advance(self.word_gates(photo), LSTMState(zero, zero), zero[..., :0])
        return LSTMState(state.h.expand(-1, beams, -1), state.c.expand(-1, beams, -1))

    def lstm_step(
        self, word_gates: Tensor, state: LSTMState, memory: Memory
    ) -> tuple[AttentionOutput, LSTMState]:
        attended = uniform_glimpse(memory.grid.features, state.h.shape[1])
        return attended, self._advance(word_gates, state, state.h[..., :0])

    def compute_logits(self, words: Tensor, state: Tensor, context: Tensor) -> Tensor:
        return self.vocabulary(self.dropout(torch.tanh(self.from_h(self.dropout(state)))))
