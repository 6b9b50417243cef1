"""The paper's decoder: an LSTM that looks at the grid before each word."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from captioner.attention import Attention, Memory
from captioner.decoders.base import Decoder, Forced, packed, rows_per_step
from captioner.errors import ConfigError
from captioner.grid import Glimpse, Grid


class LSTMState(NamedTuple):
    """h and c, [B, K, H] each."""

    h: Tensor
    c: Tensor


class LSTMDecoder(Decoder):
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
        gate: Literal["none", "scalar", "vector"] = "scalar",
        output: Literal["deep", "plain"] = "deep",
        tie_embeddings: bool = False,
        dropout: float = 0.5,
        embed_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.vocabulary_size = vocabulary_size
        self.attention = attention
        self.embedding = nn.Embedding(vocabulary_size, embed_dim, padding_idx=0)
        self.embed_dropout = nn.Dropout(embed_dropout)
        self.initial_h = nn.Linear(feature_dim, hidden_dim)
        self.initial_c = nn.Linear(feature_dim, hidden_dim)
        self.word_gates = nn.Linear(embed_dim, 4 * hidden_dim)
        self.state_gates = nn.Linear(hidden_dim + feature_dim, 4 * hidden_dim, bias=False)
        self.beta: nn.Linear | None = None
        if gate != "none":
            self.beta = nn.Linear(hidden_dim, 1 if gate == "scalar" else feature_dim)
        self.deep = output == "deep"
        self.dropout = nn.Dropout(dropout)
        if self.deep:
            self.from_h = nn.Linear(hidden_dim, embed_dim)
            self.from_context = nn.Linear(feature_dim, embed_dim, bias=False)
        self.vocabulary = nn.Linear(embed_dim if self.deep else hidden_dim, vocabulary_size)
        if tie_embeddings:
            if not self.deep:
                raise ConfigError("decoder.tie_embeddings: needs decoder.output: deep")
            self.vocabulary.weight = self.embedding.weight
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Orthogonal recurrence, small embeddings; the forget gate starts open."""
        hidden = self.initial_h.out_features
        nn.init.normal_(self.embedding.weight, std=self.embedding.embedding_dim**-0.5)
        with torch.no_grad():
            self.embedding.weight[0].zero_()
            self.word_gates.bias.zero_()
            self.word_gates.bias[hidden : 2 * hidden] = 1.0
            for gate in range(4):
                rows = slice(gate * hidden, (gate + 1) * hidden)
                nn.init.orthogonal_(self.state_gates.weight[rows, :hidden])
            self.vocabulary.bias.zero_()

    def prepare(self, grid: Grid) -> Memory:
        return self.attention.prepare(grid)

    def start(self, memory: Memory, beams: int = 1) -> LSTMState:
        mean = memory.grid.features.mean(1, keepdim=True)  # [B, 1, D]
        h, c = torch.tanh(self.initial_h(mean)), torch.tanh(self.initial_c(mean))
        return LSTMState(h.expand(-1, beams, -1), c.expand(-1, beams, -1))

    def step(
        self, tokens: Tensor, state: LSTMState, memory: Memory
    ) -> tuple[Tensor, Glimpse, LSTMState]:
        words = self._embed(tokens)
        glimpse, state = self._recur(self.word_gates(words), state, memory)
        return self._readout(words, state.h, glimpse.context), glimpse, state

    def reorder(self, state: LSTMState, photos: Tensor, beams: Tensor) -> LSTMState:
        rows = photos.unsqueeze(1)
        return LSTMState(state.h[rows, beams], state.c[rows, beams])

    def forward(self, memory: Memory, tokens: Tensor, lengths: Tensor) -> Forced:
        rows = rows_per_step(lengths)
        words = self._embed(tokens[:, : len(rows)])  # [N, T, E]
        # unbind, because the gradient of a slice a step would be as large as all steps together
        word_gates = self.word_gates(words).unbind(1)
        state = self.start(memory)
        states: list[Tensor] = []
        glimpses: list[Glimpse] = []
        running = len(lengths)
        for step, count in enumerate(rows):
            # Captions that have ended leave the batch a quarter at a time: cutting the memory at
            # every step would cost more in the backward pass than the rows that it saves.
            if count <= 0.75 * running:
                running = count
                memory = memory.select(slice(running))
                state = LSTMState(state.h[:running], state.c[:running])
            glimpse, state = self._recur(word_gates[step][:running].unsqueeze(1), state, memory)
            states.append(state.h[:count])
            glimpses.append(_first_rows(glimpse, count))
        logits = self._readout(
            packed(words, lengths),
            torch.cat(states).squeeze(1),
            torch.cat([glimpse.context for glimpse in glimpses]).squeeze(1),
        )

        def stacked(values: list[Tensor]) -> Tensor:
            return torch.nn.utils.rnn.pad_sequence([v.squeeze(1) for v in values]).contiguous()

        beta = None
        if self.beta is not None:
            beta = stacked([glimpse.beta for glimpse in glimpses if glimpse.beta is not None])
        return Forced(
            logits=logits,
            maps=stacked([glimpse.map for glimpse in glimpses]),
            entropy=stacked([glimpse.entropy for glimpse in glimpses]),
            log_prob=stacked([glimpse.log_prob for glimpse in glimpses]),
            beta=beta,
        )

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.embed_dropout(self.embedding(tokens))

    def _recur(
        self, word_gates: Tensor, state: LSTMState, memory: Memory
    ) -> tuple[Glimpse, LSTMState]:
        """Look, gate, and advance the LSTM; word_gates [B, K, 4H] is the word's share of it."""
        glimpse = self.attention(state.h, memory)
        if self.beta is not None:
            beta = torch.sigmoid(self.beta(state.h))  # [B, K, 1 or D]
            glimpse = replace(glimpse, context=beta * glimpse.context, beta=beta.mean(-1))
        gates = word_gates + self.state_gates(torch.cat([state.h, glimpse.context], dim=-1))
        i, f, o, g = gates.chunk(4, dim=-1)
        c = torch.sigmoid(f) * state.c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return glimpse, LSTMState(h, c)

    def _readout(self, words: Tensor, h: Tensor, context: Tensor) -> Tensor:
        """Equation 7: L_o(E y + L_h h + L_z z_hat), with the original code's dropout and tanh."""
        if not self.deep:
            return self.vocabulary(self.dropout(h))
        hidden = words + self.from_h(self.dropout(h)) + self.from_context(context)
        return self.vocabulary(self.dropout(torch.tanh(hidden)))


def _first_rows(glimpse: Glimpse, count: int) -> Glimpse:
    """The glimpse of the first captions of a batch."""
    values = {name: value for name, value in vars(glimpse).items() if value is not None}
    return replace(glimpse, **{name: value[:count] for name, value in values.items()})
