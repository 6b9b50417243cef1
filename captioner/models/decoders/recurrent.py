"""What all decoders with an LSTM share: words in, states along, words out."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from captioner.errors import ConfigError
from captioner.models.attention import Attention, Memory
from captioner.models.decoders.base import (
    Decoder,
    TeacherForcingOutput,
    add_style,
    pack_by_step,
    rows_per_step,
)
from captioner.runtime.linear import Linear, StepLinear, gradients_at_once
from captioner.types import AttentionOutput, Grid

GateKind = Literal["none", "scalar", "vector"]


class LSTMState(NamedTuple):
    """h and c, [B, K, H] each.

    position: number of the word to be written, from 0, the same for all.
    fed: what the LSTM reads again at the next word: the attentional vector of the word before,
        [B, K, E], or the h of a second LSTM, [B, K, H].
    second_c: c of that second LSTM.
    constant: [B, K, 4H], what every word adds to the gates.
    """

    h: Tensor
    c: Tensor
    position: int = 0
    fed: Tensor | None = None
    second_c: Tensor | None = None
    constant: Tensor | None = None

    def at(self, index: Any) -> LSTMState:
        """The same for a part of the hypotheses: `index` is that of every tensor."""
        tensors = {k: v for k, v in self._asdict().items() if isinstance(v, Tensor)}
        chosen: dict[str, Any] = {name: value[index] for name, value in tensors.items()}
        return self._replace(**chosen)


class RecurrentDecoder(Decoder):
    """An LSTM over the words; what it looks at, and when, is its subclasses' business.

    input_dim: size of what the LSTM reads beside the word and h. output_dim: size of what the last
    layer reads.
    """

    def __init__(
        self,
        *,
        vocabulary_size: int,
        hidden_dim: int,
        embed_dim: int,
        input_dim: int,
        output_dim: int,
        tie_embeddings: bool,
        dropout: float,
        embed_dropout: float,
    ) -> None:
        super().__init__()
        self.vocabulary_size = vocabulary_size
        self.embedding = nn.Embedding(vocabulary_size, embed_dim, padding_idx=0)
        self.embed_dropout = nn.Dropout(embed_dropout)
        self.word_gates = Linear(embed_dim, 4 * hidden_dim)
        self.state_gates = StepLinear(hidden_dim + input_dim, 4 * hidden_dim, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.vocabulary = Linear(output_dim, vocabulary_size)
        if tie_embeddings:
            if output_dim != embed_dim:
                raise ConfigError(
                    "decoder.tie_embeddings: needs decoder.output: deep, or hidden_dim and "
                    "embed_dim alike"
                )
            self.vocabulary.weight = self.embedding.weight
        self._reset()

    def _reset(self) -> None:
        """Orthogonal recurrence, small embeddings; the forget gate starts open."""
        hidden = self.word_gates.out_features // 4
        nn.init.normal_(self.embedding.weight, std=self.embedding.embedding_dim**-0.5)
        with torch.no_grad():
            self.embedding.weight[0].zero_()
            begin_gates(self.word_gates.bias, self.state_gates.weight[:, :hidden])
            self.vocabulary.bias.zero_()

    @abstractmethod
    def lstm_step(
        self, word_gates: Tensor, state: LSTMState, memory: Memory
    ) -> tuple[AttentionOutput, LSTMState]:
        """Look and advance the LSTM; word_gates [B, K, 4H] is the word's share of its gates."""

    @abstractmethod
    def compute_logits(self, words: Tensor, state: Tensor, context: Tensor) -> Tensor:
        """Logits [..., V] of the word read [..., E], the new state's output, and the context.

        The output is `fed` where the state has it, else h.
        """

    def step(
        self, tokens: Tensor, state: LSTMState, memory: Memory
    ) -> tuple[Tensor, AttentionOutput, LSTMState]:
        words = self._embed(tokens)
        attended, state = self.lstm_step(self.word_gates(words), state, memory)
        return (
            self.compute_logits(words, _output(state), attended.context),
            attended,
            state,
        )

    def reorder(self, state: LSTMState, photos: Tensor, beams: Tensor) -> LSTMState:
        rows = photos.unsqueeze(1)
        return state.at((rows, beams))

    def forward(
        self, memory: Memory, tokens: Tensor, lengths: Tensor, style: Tensor | None = None
    ) -> TeacherForcingOutput:
        with gradients_at_once(self):
            return self._forced(replace(memory, in_steps=True), tokens, lengths, style)

    def _forced(
        self, memory: Memory, tokens: Tensor, lengths: Tensor, style: Tensor | None
    ) -> TeacherForcingOutput:
        rows = rows_per_step(lengths)
        words = self._embed(tokens[:, : len(rows)], style)  # [N, T, E]
        # unbind, because the gradient of a slice a step would be as large as all steps together
        word_gates = self.word_gates(words).unbind(1)
        state = self.start(memory)
        queries: list[Tensor] = []
        outputs: list[Tensor] = []
        attended_words: list[AttentionOutput] = []
        running = len(lengths)
        for step, count in enumerate(rows):
            # Captions that have ended leave the batch a quarter at a time: cutting the memory at
            # every step would cost more in the backward pass than the rows that it saves.
            if count <= 0.75 * running:
                running = count
                memory, state = memory.select(slice(running)), state.at(slice(running))
            queries.append(state.h[:count])
            attended, state = self.lstm_step(word_gates[step][:running].unsqueeze(1), state, memory)
            outputs.append(_output(state)[:count])
            attended_words.append(_first_rows(attended, count))
        logits = self.compute_logits(
            pack_by_step(words, lengths),
            torch.cat(outputs).squeeze(1),
            torch.cat([attended.context for attended in attended_words]).squeeze(1),
        )

        def stacked(values: list[Tensor]) -> Tensor:
            return nn.utils.rnn.pad_sequence([value.squeeze(1) for value in values]).contiguous()

        betas = [attended.beta for attended in attended_words if attended.beta is not None]
        cells = [attended.cells for attended in attended_words if attended.cells is not None]

        return TeacherForcingOutput(
            logits=logits,
            maps=stacked([attended.weights for attended in attended_words]),
            entropy=stacked([attended.entropy for attended in attended_words]),
            log_prob=stacked([attended.log_prob for attended in attended_words]),
            beta=stacked(betas) if betas else None,
            queries=torch.cat(queries).squeeze(1).detach(),
            cells=stacked(cells) if cells else None,
        )

    def _embed(self, tokens: Tensor, style: Tensor | None = None) -> Tensor:
        return self.embed_dropout(add_style(self.embedding(tokens), style))

    def _advance(self, word_gates: Tensor, state: LSTMState, read: Tensor) -> LSTMState:
        """Equations 1 to 3 on what the LSTM reads beside the word; `fed` is left out."""
        gates = word_gates + self.state_gates(torch.cat([state.h, read], dim=-1))
        return LSTMState(*lstm_cell(gates, state.c), state.position + 1)


@torch.no_grad()
def begin_gates(bias: Tensor, recurrence: Tensor) -> None:
    """First values of an LSTM's gates: bias [4H], weights [4H, H] of its own last state."""
    hidden = recurrence.shape[1]
    bias.zero_()
    bias[hidden : 2 * hidden] = 1.0  # forgetting starts open
    for rows in recurrence.split(hidden):
        nn.init.orthogonal_(rows)


def lstm_cell(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """h and c after the gates [..., 4H] of input, forgetting, output and candidate."""
    i, f, o, g = gates.chunk(4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


class AttendingDecoder(RecurrentDecoder):
    """An LSTM that looks: attention, its gate, and a first state from the mean annotation vector.

    h_0 and c_0 are tanh layers of the mean, as in the original code of Show, Attend and Tell.
    from_h, from_context: those of the deep output, for decoders that have it.
    """

    from_h: Linear
    from_context: Linear

    def __init__(
        self, attention: Attention, *, feature_dim: int, gate: GateKind, **words: Any
    ) -> None:
        """words: arguments of RecurrentDecoder."""
        super().__init__(**words)
        hidden_dim = words["hidden_dim"]
        self.attention = attention
        self.initial_h = Linear(feature_dim, hidden_dim)
        self.initial_c = Linear(feature_dim, hidden_dim)
        self.beta: StepLinear | None = None
        if gate != "none":
            self.beta = StepLinear(hidden_dim, 1 if gate == "scalar" else feature_dim)

    def prepare(self, grid: Grid) -> Memory:
        return self.attention.prepare(grid)

    def start(self, memory: Memory, beams: int = 1) -> LSTMState:
        mean = memory.grid.features.mean(1, keepdim=True)  # [B, 1, D]
        h, c = torch.tanh(self.initial_h(mean)), torch.tanh(self.initial_c(mean))
        return LSTMState(h.expand(-1, beams, -1), c.expand(-1, beams, -1))

    def deep_output(self, words: Tensor, state: Tensor, context: Tensor) -> Tensor:
        """Equation 7: L_o(E y + L_h h + L_z z_hat), with the original code's dropout and tanh."""
        hidden = words + self.from_h(self.dropout(state)) + self.from_context(context)
        return self.vocabulary(self.dropout(torch.tanh(hidden)))

    def look(self, h: Tensor, memory: Memory, position: int) -> AttentionOutput:
        """Attention from h, its context times beta = sigmoid(f_beta(h)) (section 4.2.1)."""
        attended = self.attention(h, memory, position)
        if self.beta is None:
            return attended
        beta = torch.sigmoid(self.beta(h))  # [B, K, 1 or D]
        return replace(attended, context=beta * attended.context, beta=beta.mean(-1))


def _output(state: LSTMState) -> Tensor:
    return state.h if state.fed is None else state.fed


def _first_rows(attended: AttentionOutput, count: int) -> AttentionOutput:
    """The attended of the first captions of a batch."""
    if count == len(attended.weights):  # in the backward pass, even a whole slice is a copy
        return attended
    values = {name: value for name, value in vars(attended).items() if value is not None}
    return replace(attended, **{name: value[:count] for name, value in values.items()})
