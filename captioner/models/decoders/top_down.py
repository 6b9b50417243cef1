"""Two LSTMs, one that looks and one that writes."""

from __future__ import annotations

import torch
from torch import Tensor

from captioner.models.attention import Attention, Memory
from captioner.models.decoders.recurrent import (
    AttendingDecoder,
    GateKind,
    LSTMState,
    begin_gates,
    lstm_cell,
)
from captioner.runtime.linear import Linear, StepLinear
from captioner.types import AttentionOutput


class TopDownDecoder(AttendingDecoder):
    """Bottom-up and top-down attention (Anderson et al., 2018, section 3.2), over any grid.

    The attention LSTM reads the word before, the mean annotation vector and the language LSTM's
    last state (equation 2), and its state is the query (equations 3 to 5); the language LSTM reads
    the context and that state (equation 6). The word comes by the deep output of Show, Attend and
    Tell from the language LSTM's state, where the paper has one layer (equation 7), so that the
    last layer can be the embedding matrix. Both begin as the LSTM of Show, Attend and Tell does,
    from the mean annotation vector.
    """

    def __init__(
        self,
        attention: Attention,
        *,
        vocabulary_size: int,
        feature_dim: int,
        hidden_dim: int,
        embed_dim: int,
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
            input_dim=hidden_dim,
            output_dim=embed_dim,
            tie_embeddings=tie_embeddings,
            dropout=dropout,
            embed_dropout=embed_dropout,
        )
        self.mean_gates = Linear(feature_dim, 4 * hidden_dim, bias=False)
        self.language_gates = StepLinear(feature_dim + 2 * hidden_dim, 4 * hidden_dim)
        self.from_h = Linear(hidden_dim, embed_dim)
        self.from_context = Linear(feature_dim, embed_dim, bias=False)
        begin_gates(self.language_gates.bias, self.language_gates.weight[:, -hidden_dim:])

    def start(self, memory: Memory, beams: int = 1) -> LSTMState:
        state = super().start(memory, beams)
        mean = memory.grid.features.mean(1, keepdim=True)  # [B, 1, D]
        return state._replace(
            fed=state.h,
            second_c=state.c,
            constant=self.mean_gates(mean).expand(-1, beams, -1),
        )

    def lstm_step(
        self, word_gates: Tensor, state: LSTMState, memory: Memory
    ) -> tuple[AttentionOutput, LSTMState]:
        assert state.fed is not None
        assert state.second_c is not None
        assert state.constant is not None
        looking = self._advance(word_gates + state.constant, state, state.fed)
        attended = self.look(looking.h, memory, state.position)
        read = torch.cat([attended.context, looking.h, state.fed], dim=-1)
        fed, second_c = lstm_cell(self.language_gates(read), state.second_c)
        return attended, looking._replace(fed=fed, second_c=second_c, constant=state.constant)

    def compute_logits(self, words: Tensor, state: Tensor, context: Tensor) -> Tensor:
        return self.deep_output(words, state, context)
