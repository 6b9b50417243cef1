"""The paper's decoder: an LSTM that looks at the grid before each word."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from captioner.models.attention import Attention, Memory
from captioner.models.decoders.recurrent import AttendingDecoder, GateKind, LSTMState
from captioner.runtime.linear import Linear
from captioner.types import AttentionOutput


class LSTMDecoder(AttendingDecoder):
    """Show, Attend and Tell, section 3.1.2.

    At each step: z_hat = beta * attention(h_{t-1}) (equations 4 to 6, gate of section 4.2.1),
    LSTM on [E y_{t-1}, h_{t-1}, z_hat] (equations 1 to 3), deep output (equation 7). h_0 and c_0
    are tanh layers of the mean annotation vector, as in the original code.
    """

    def __init__(
        self,
        attention: Attention,
        *,
        vocabulary_size: int,
        feature_dim: int,
        hidden_dim: int,
        embed_dim: int,
        gate: GateKind = "scalar",
        output: Literal["deep", "plain"] = "deep",
        tie_embeddings: bool = False,
        dropout: float = 0.5,
        embed_dropout: float = 0.0,
    ) -> None:
        deep = output == "deep"
        super().__init__(
            attention,
            feature_dim=feature_dim,
            gate=gate,
            vocabulary_size=vocabulary_size,
            hidden_dim=hidden_dim,
            embed_dim=embed_dim,
            input_dim=feature_dim,
            output_dim=embed_dim if deep else hidden_dim,
            tie_embeddings=tie_embeddings,
            dropout=dropout,
            embed_dropout=embed_dropout,
        )
        self.deep = deep
        if deep:
            self.from_h = Linear(hidden_dim, embed_dim)
            self.from_context = Linear(feature_dim, embed_dim, bias=False)

    def lstm_step(
        self, word_gates: Tensor, state: LSTMState, memory: Memory
    ) -> tuple[AttentionOutput, LSTMState]:
        attended = self.look(state.h, memory, state.position)
        return attended, self._advance(word_gates, state, attended.context)

    def compute_logits(self, words: Tensor, state: Tensor, context: Tensor) -> Tensor:
        if self.deep:
            return self.deep_output(words, state, context)
        return self.vocabulary(self.dropout(state))
