"""Two LSTMs: one attends, the other writes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from captioner.config import DecoderConfig
from captioner.models.attention.attention import Memory
from captioner.models.decoders.base import AttentionFactory
from captioner.models.decoders.lstm import LSTMDecoder, LSTMState, init_gates, lstm_cell
from captioner.types import AttentionOutput


@dataclass(frozen=True, kw_only=True)
class TopDownState(LSTMState):
    """State of the hypotheses of each image; h and c are those of the attention LSTM.

    Args:
        language_h: Hidden state of the language LSTM, [B, K, H].
        language_c: Its cell state, [B, K, H].
        mean_gates: Share of the mean annotation vector in the attention LSTM's gates, [B, K, 4H].
    """

    language_h: Tensor
    language_c: Tensor
    mean_gates: Tensor

    @property
    def output(self) -> Tensor:
        return self.language_h


class TopDownDecoder(LSTMDecoder):
    """Bottom-up and top-down attention (Anderson et al., 2018, section 3.2), over any grid.

    The attention LSTM reads the last word, the mean annotation vector and the language LSTM's last
    state (equation 2), and its state is the query (equations 3 to 5); the language LSTM reads the
    context and that state (equation 6). Its state predicts the word by the deep output of Show,
    Attend and Tell, where the paper has one layer (equation 7). Both LSTMs start as there.
    """

    def __init__(
        self, config: DecoderConfig, attend: AttentionFactory, *, feature_dim: int, **sizes: int
    ) -> None:
        hidden_dim, embed_dim = config.hidden_dim, config.embed_dim
        sizes |= {"input_dim": hidden_dim, "output_dim": embed_dim}
        super().__init__(config, attend, feature_dim=feature_dim, **sizes)
        self.mean_gates = nn.Linear(feature_dim, 4 * hidden_dim, bias=False)
        self.language_gates = nn.Linear(feature_dim + 2 * hidden_dim, 4 * hidden_dim)
        self.from_h = nn.Linear(hidden_dim, embed_dim)
        self.from_context = nn.Linear(feature_dim, embed_dim, bias=False)
        init_gates(self.language_gates.bias, self.language_gates.weight[:, -hidden_dim:])

    def start(self, memory: Memory, beams: int = 1) -> TopDownState:
        state = super().start(memory, beams)
        mean = memory.grid.features.mean(1, keepdim=True)  # [B, 1, D]
        return TopDownState(
            h=state.h,
            c=state.c,
            language_h=state.h,
            language_c=state.c,
            mean_gates=self.mean_gates(mean).expand(-1, beams, -1),
        )

    def lstm_step(
        self, word_gates: Tensor, state: LSTMState, memory: Memory
    ) -> tuple[AttentionOutput, LSTMState]:
        assert isinstance(state, TopDownState)
        state = self.advance(word_gates + state.mean_gates, state, state.language_h)
        attended = self.attend(state.h, memory, state.position - 1)
        inputs = torch.cat([attended.context, state.h, state.language_h], dim=-1)
        h, c = lstm_cell(self.language_gates(inputs), state.language_c)
        return attended, replace(state, language_h=h, language_c=c)
