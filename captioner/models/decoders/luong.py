"""Luong's order: the LSTM goes on first, then looks, and the look makes the word."""

from __future__ import annotations

import torch
from torch import Tensor

from captioner.models.attention import Attention, Memory
from captioner.models.decoders.recurrent import AttendingDecoder, GateKind, LSTMState
from captioner.runtime.linear import StepLinear
from captioner.types import AttentionOutput


class LuongDecoder(AttendingDecoder):
    """Luong et al., 2015, sections 3.1 and 3.3.

    h_t from the LSTM on [E y_{t-1}, h_{t-1}], with input feeding also on the attentional vector of
    the word before; c_t by attention with h_t as query; h~_t = tanh(W_c [c_t; h_t]) (equation 5);
    the word from h~_t (equation 6). h~ has the size of the embedding, so that the last layer can be
    the embedding matrix; h_0 and c_0 are as in Show, Attend and Tell, for a photo has no last
    encoder state.
    """

    def __init__(
        self,
        attention: Attention,
        *,
        vocabulary_size: int,
        feature_dim: int,
        hidden_dim: int,
        embed_dim: int,
        input_feeding: bool = True,
        gate: GateKind = "none",
        tie_embeddings: bool = False,
        dropout: float = 0.5,
        embed_dropout: float = 0.0,
    ) -> None:
        super().__init__(
            attention,
            feature_dim=feature_dim,
            gate=gate,
            vocabulary_size=vocabulary_size,
            hidden_dim=hidden_dim,
            embed_dim=embed_dim,
            input_dim=embed_dim if input_feeding else 0,
            output_dim=embed_dim,
            tie_embeddings=tie_embeddings,
            dropout=dropout,
            embed_dropout=embed_dropout,
        )
        self.attentional = StepLinear(feature_dim + hidden_dim, embed_dim, bias=False)
        self.input_feeding = input_feeding

    def start(self, memory: Memory, beams: int = 1) -> LSTMState:
        state = super().start(memory, beams)
        return state._replace(
            fed=state.h.new_zeros(*state.h.shape[:2], self.word_gates.in_features)
        )

    def lstm_step(
        self, word_gates: Tensor, state: LSTMState, memory: Memory
    ) -> tuple[AttentionOutput, LSTMState]:
        assert state.fed is not None
        read = state.fed if self.input_feeding else state.fed[..., :0]
        after = self._advance(word_gates, state, read)
        attended = self.look(after.h, memory, state.position)
        attentional = torch.tanh(self.attentional(torch.cat([attended.context, after.h], dim=-1)))
        return attended, after._replace(fed=attentional)

    def compute_logits(self, words: Tensor, state: Tensor, context: Tensor) -> Tensor:
        """Equation 6: the word from the attentional vector."""
        return self.vocabulary(self.dropout(state))
