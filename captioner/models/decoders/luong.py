"""Luong's decoder: the LSTM advances first, then attends, and both predict the word."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from captioner.config import DecoderConfig
from captioner.models.attention.attention import Memory
from captioner.models.decoders.base import AttentionFactory
from captioner.models.decoders.lstm import LSTMDecoder, LSTMState
from captioner.types import AttentionOutput


@dataclass(frozen=True, kw_only=True)
class LuongState(LSTMState):
    """State of the hypotheses of each image."""

    attentional: Tensor  # h~ of the last word, [B, K, E]

    @property
    def output(self) -> Tensor:
        return self.attentional


class LuongDecoder(LSTMDecoder):
    """Luong et al., 2015, sections 3.1 and 3.3.

    h_t comes from the LSTM on [E y_{t-1}, h_{t-1}], with input feeding also on the attentional
    vector of the last word; c_t is attention with h_t as query; h~_t = tanh(W_c [c_t; h_t]), of the
    embedding's size (equation 5), predicts the word (equation 6). h_0 and c_0 are those of Show,
    Attend and Tell, because an image has no last encoder state.
    """

    def __init__(
        self, config: DecoderConfig, attend: AttentionFactory, *, feature_dim: int, **sizes: int
    ) -> None:
        fed = config.embed_dim if config.input_feeding else 0
        sizes |= {"input_dim": fed, "output_dim": config.embed_dim}
        super().__init__(config, attend, feature_dim=feature_dim, **sizes)
        size = feature_dim + config.hidden_dim
        self.attentional = nn.Linear(size, config.embed_dim, bias=False)
        self.input_feeding = config.input_feeding

    def start(self, memory: Memory, beams: int = 1) -> LuongState:
        state = super().start(memory, beams)
        shape = (*state.h.shape[:2], self.embedding.embedding_dim)
        return LuongState(h=state.h, c=state.c, attentional=state.h.new_zeros(shape))

    def lstm_step(
        self, word_gates: Tensor, state: LSTMState, memory: Memory
    ) -> tuple[AttentionOutput, LSTMState]:
        assert isinstance(state, LuongState)
        inputs = state.attentional if self.input_feeding else state.attentional[..., :0]
        state = self.advance(word_gates, state, inputs)
        attended = self.attend(state.h, memory, state.position - 1)
        attentional = torch.tanh(self.attentional(torch.cat([attended.context, state.h], dim=-1)))
        return attended, replace(state, attentional=attentional)
