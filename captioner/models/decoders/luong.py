"""Luong's decoder: the LSTM advances first, then attends, and both predict the word."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from captioner.config import DecoderConfig
from captioner.models.attention import Attention, Memory
from captioner.models.decoders.base import AttentionFactory
from captioner.models.decoders.lstm import LSTMState, RecurrentDecoder
from captioner.types import AttentionOutput


class LuongDecoder(RecurrentDecoder):
    """Luong et al., 2015, sections 3.1 and 3.3.

    h_t comes from the LSTM on [E y_{t-1}, h_{t-1}], with input feeding also on the attentional
    vector of the last word; c_t is attention with h_t as query; h~_t = tanh(W_c [c_t; h_t])
    (equation 5) predicts the word (equation 6). h~ has the size of the embedding, so that the last
    layer can be the embedding matrix. h_0 and c_0 are those of Show, Attend and Tell, because an
    image has no last encoder state.
    """

    def __init__(
        self,
        attention: Attention,
        *,
        feature_dim: int,
        hidden_dim: int,
        embed_dim: int,
        input_feeding: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(
            attention,
            feature_dim=feature_dim,
            hidden_dim=hidden_dim,
            embed_dim=embed_dim,
            input_dim=embed_dim if input_feeding else 0,
            output_dim=embed_dim,
            **settings,
        )
        self.attentional = nn.Linear(feature_dim + hidden_dim, embed_dim, bias=False)
        self.input_feeding = input_feeding

    @classmethod
    def from_config(
        cls, config: DecoderConfig, attend: AttentionFactory, **options: Any
    ) -> RecurrentDecoder:
        return super().from_config(config, attend, input_feeding=config.input_feeding, **options)

    def start(self, memory: Memory, beams: int = 1) -> LSTMState:
        state = super().start(memory, beams)
        shape = (*state.h.shape[:2], self.embedding.embedding_dim)
        return state._replace(input_feeding=state.h.new_zeros(shape))

    def lstm_step(
        self, word_gates: Tensor, state: LSTMState, memory: Memory
    ) -> tuple[AttentionOutput, LSTMState]:
        inputs = state.output if self.input_feeding else state.output[..., :0]
        state = self.advance(word_gates, state, inputs)
        attended = self.attend(state.h, memory, state.position - 1)
        attentional = torch.tanh(self.attentional(torch.cat([attended.context, state.h], dim=-1)))
        return attended, state._replace(input_feeding=attentional)

    def compute_logits(self, words: Tensor, output: Tensor, context: Tensor) -> Tensor:
        """Equation 6: the word from the attentional vector."""
        return self.vocabulary(self.dropout(output))
