"""LSTM decoders other than the paper's: Luong's, one with two LSTMs, and one without attention."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from captioner.config import DecoderConfig
from captioner.models.attention.attention import Memory
from captioner.models.decoders.base import AttentionFactory
from captioner.models.decoders.lstm import LSTMDecoder, LSTMState, LSTMStep, init_gates, lstm_cell
from captioner.types import AttentionOutput, Grid


@dataclass(frozen=True, kw_only=True)
class LuongState(LSTMState):
    attentional: Tensor  # h~ of the last word, [B, K, E]


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
        self.attentional = nn.Linear(feature_dim + config.hidden_dim, config.embed_dim, bias=False)
        self.input_feeding = config.input_feeding

    def start(self, memory: Memory, beams: int = 1) -> LuongState:
        state = super().start(memory, beams)
        shape = (*state.h.shape[:2], self.embedding.embedding_dim)
        return LuongState(h=state.h, c=state.c, attentional=state.h.new_zeros(shape))

    def lstm_step(self, word_gates: Tensor, state: LSTMState, memory: Memory) -> LSTMStep:
        assert isinstance(state, LuongState)
        inputs = state.attentional if self.input_feeding else state.attentional[..., :0]
        state = self.advance(word_gates, state, inputs)
        attended = self.attend(state.h, memory, state.position - 1)
        attentional = torch.tanh(self.attentional(torch.cat([attended.context, state.h], dim=-1)))
        return attended, attentional, replace(state, attentional=attentional)


@dataclass(frozen=True, kw_only=True)
class TopDownState(LSTMState):
    """State of the hypotheses of each image; h and c are those of the attention LSTM."""

    language_h: Tensor  # [B, K, H], hidden state of the language LSTM
    language_c: Tensor  # [B, K, H], its cell state
    mean_gates: Tensor  # [B, K, 4H], share of the mean vector in the attention LSTM's gates


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
        mean_gates = self.mean_gates(mean).expand(-1, beams, -1)
        h, c = state.h, state.c
        return TopDownState(h=h, c=c, language_h=h, language_c=c, mean_gates=mean_gates)

    def lstm_step(self, word_gates: Tensor, state: LSTMState, memory: Memory) -> LSTMStep:
        assert isinstance(state, TopDownState)
        state = self.advance(word_gates + state.mean_gates, state, state.language_h)
        attended = self.attend(state.h, memory, state.position - 1)
        inputs = torch.cat([attended.context, state.h, state.language_h], dim=-1)
        h, c = lstm_cell(self.language_gates(inputs), state.language_c)
        return attended, h, replace(state, language_h=h, language_c=c)


class MeanDecoder(LSTMDecoder):
    """Show and Tell (Vinyals et al., 2015, section 3.1): no attention.

    The LSTM starts from zero and reads the projected mean annotation vector in place of a first
    word (equation 10), then the words, and never the image again. Its attention maps are uniform.
    """

    def __init__(
        self, config: DecoderConfig, attend: AttentionFactory, *, feature_dim: int, **sizes: int
    ) -> None:
        sizes |= {"input_dim": 0, "output_dim": config.embed_dim}
        super().__init__(config, None, feature_dim=feature_dim, **sizes)
        self.photo = nn.Linear(feature_dim, config.embed_dim)  # "photo": a key of the weights
        self.from_h = nn.Linear(config.hidden_dim, config.embed_dim)

    def prepare(self, grid: Grid) -> Memory:
        return Memory(grid, keys=grid.features[..., :0].unsqueeze(1))

    def start(self, memory: Memory, beams: int = 1) -> LSTMState:
        image = self.photo(memory.grid.features.mean(1, keepdim=True))  # [B, 1, E]
        zero = image.new_zeros(image.shape[0], 1, self.word_gates.out_features // 4)
        state = self.advance(self.word_gates(image), LSTMState(h=zero, c=zero), zero[..., :0])
        return LSTMState(h=state.h.expand(-1, beams, -1), c=state.c.expand(-1, beams, -1))

    def lstm_step(self, word_gates: Tensor, state: LSTMState, memory: Memory) -> LSTMStep:
        features, beams = memory.grid.features, state.h.shape[1]
        images, cells, _ = features.shape
        # at least float32, as of all attention: in half precision the map would not sum to 1
        dtype = torch.promote_types(features.dtype, torch.float32)
        zero = features.new_zeros(images, beams, dtype=dtype)
        attended = AttentionOutput(
            context=features.mean(1, keepdim=True).expand(-1, beams, -1),
            weights=features.new_full((images, beams, cells), 1.0 / cells, dtype=dtype),
            entropy=torch.log(zero + cells),
            log_prob=zero,
        )
        state = self.advance(word_gates, state, state.h[..., :0])
        return attended, state.h, state

    def compute_logits(self, words: Tensor, output: Tensor, context: Tensor) -> Tensor:
        assert self.from_h is not None
        return self.vocabulary(self.dropout(torch.tanh(self.from_h(self.dropout(output)))))
