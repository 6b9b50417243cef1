"""The paper's decoder: an LSTM that attends to the grid before each word."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from captioner.config import DecoderConfig
from captioner.data.batch import pack_by_step, unpack_by_step, word_mask
from captioner.errors import ConfigError
from captioner.models.attention.attention import Memory, indexed_tensors
from captioner.models.decoders.base import AttentionFactory, Decoder, TeacherForcingOutput
from captioner.models.products import shared_gradients
from captioner.types import AttentionOutput, Grid


@dataclass(frozen=True, kw_only=True)
class LSTMState:
    """State of the hypotheses of each image: hidden state and cell state, [B, K, H] each."""

    h: Tensor
    c: Tensor
    position: int = 0  # of the next word, the same for all

    def select(self, index: Any) -> LSTMState:
        """Return the state of some hypotheses; `index` is applied to every tensor."""
        tensors: dict[str, Any] = indexed_tensors(self, index)
        return replace(self, **tensors)


StateT = TypeVar("StateT", bound=LSTMState)
# The attention, the vector [B, K, H] that the word is predicted from, and the state after it.
LSTMStep: TypeAlias = tuple[AttentionOutput, Tensor, LSTMState]


class LSTMDecoder(Decoder):
    """Show, Attend and Tell, section 3.1.2; the other decoders with an LSTM are subclasses.

    At each step: z_hat = beta * attention(h_{t-1}) (equations 4 to 6, gate of section 4.2.1), LSTM
    on [E y_{t-1}, h_{t-1}, z_hat] (equations 1 to 3), deep output (equation 7).

    Args:
        attend: Builds the attention; None for a decoder without.
        input_dim: Size of what the LSTM reads in addition to the word and h; by default D.
        output_dim: Size of the last layer's input; by default as `config.output` says.
    """

    def __init__(
        self,
        config: DecoderConfig,
        attend: AttentionFactory | None,
        *,
        vocabulary_size: int,
        feature_dim: int,
        input_dim: int | None = None,
        output_dim: int | None = None,
    ) -> None:
        super().__init__()
        hidden_dim, embed_dim = config.hidden_dim, config.embed_dim
        deep = output_dim is None and config.output == "deep"
        input_dim = feature_dim if input_dim is None else input_dim
        output_dim = output_dim or (embed_dim if deep else hidden_dim)
        attention = None if attend is None else attend()
        self.embedding = nn.Embedding(vocabulary_size, embed_dim, padding_idx=0)
        self.embed_dropout = nn.Dropout(config.embed_dropout)
        # The LSTM's gates: the word's share is computed for all words at once, with the bias.
        self.word_gates = nn.Linear(embed_dim, 4 * hidden_dim)
        self.state_gates = nn.Linear(hidden_dim + input_dim, 4 * hidden_dim, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.vocabulary = nn.Linear(output_dim, vocabulary_size)
        if config.tie_embeddings and output_dim != embed_dim:
            raise ConfigError(
                "decoder.tie_embeddings: needs decoder.output: deep, or hidden_dim and "
                "embed_dim equal"
            )
        self.init_words(tie=config.tie_embeddings)
        init_gates(self.word_gates.bias, self.state_gates.weight[:, :hidden_dim])
        self.beta: nn.Linear | None = None
        if attention is not None:
            self.attention = attention
            self.initial_h = nn.Linear(feature_dim, hidden_dim)
            self.initial_c = nn.Linear(feature_dim, hidden_dim)
            if config.gate != "none":
                self.beta = nn.Linear(hidden_dim, 1 if config.gate == "scalar" else feature_dim)
        self.from_h: nn.Linear | None = None
        self.from_context: nn.Linear | None = None
        if deep:
            self.from_h = nn.Linear(hidden_dim, embed_dim)
            self.from_context = nn.Linear(feature_dim, embed_dim, bias=False)

    def prepare(self, grid: Grid) -> Memory:
        return self.attention.prepare(grid)

    def start(self, memory: Memory, beams: int = 1) -> LSTMState:
        """h_0 and c_0 are tanh layers of the mean annotation vector, as in the original code."""
        mean = memory.grid.features.mean(1, keepdim=True)  # [B, 1, D]
        h, c = torch.tanh(self.initial_h(mean)), torch.tanh(self.initial_c(mean))
        return LSTMState(h=h.expand(-1, beams, -1), c=c.expand(-1, beams, -1))

    def step(
        self, tokens: Tensor, state: LSTMState, memory: Memory
    ) -> tuple[Tensor, AttentionOutput, LSTMState]:
        words = self.embed_dropout(self.embedding(tokens))
        attended, output, state = self.lstm_step(self.word_gates(words), state, memory)
        return self.compute_logits(words, output, attended.context), attended, state

    def reorder(self, state: LSTMState, images: Tensor, beams: Tensor) -> LSTMState:
        return state.select((images.unsqueeze(1), beams))

    def forward(self, memory: Memory, tokens: Tensor, lengths: Tensor) -> TeacherForcingOutput:
        running_words = word_mask(lengths)  # [N, T]
        tokens = tokens[:, : running_words.shape[1]]
        words = self.embed_dropout(self.embedding(tokens))  # [N, T, E]
        # unbind: the gradient of a slice for each step would be as large as all steps together
        word_gates = self.word_gates(words).unbind(1)
        state = self.start(memory)
        running = len(lengths)
        outputs: list[Tensor] = []
        steps: list[AttentionOutput] = []
        is_mask = lengths.dim() == 2  # padding is computed too, so that shapes are fixed
        batch_sizes = [running] * tokens.shape[1] if is_mask else running_words.sum(0).tolist()
        with shared_gradients():
            for step, count in enumerate(batch_sizes):
                # Captions that have ended leave the batch a quarter at a time: cutting the memory
                # at every step would cost more in the backward pass than the rows that it saves.
                if count <= 0.75 * running:
                    running = count
                    memory, state = memory.select(slice(running)), state.select(slice(running))
                gates = word_gates[step][:running].unsqueeze(1)
                attended, output, state = self.lstm_step(gates, state, memory)
                outputs.append(output[:count])
                steps.append(attended)

        def pack(values: list[Tensor]) -> Tensor:
            """Join [count or more, 1, ...] of each step to [M, ...]."""
            pairs = zip(values, batch_sizes, strict=True)
            return torch.cat([value[:count] for value, count in pairs]).squeeze(1)

        def pad(name: str) -> Any:
            """Join a field of all steps to [N, T, ...], zero where a caption has ended."""
            values = [getattr(attended, name) for attended in steps]
            return None if values[0] is None else unpack_by_step(pack(values), lengths)

        context = pack([attended.context for attended in steps])
        words = pack_by_step(words, lengths)
        return TeacherForcingOutput(
            logits=self.compute_logits(words, torch.cat(outputs).squeeze(1), context),
            maps=pad("weights"),
            entropy=pad("entropy"),
            log_prob=pad("log_prob"),
            beta=pad("beta"),
        )

    def lstm_step(self, word_gates: Tensor, state: LSTMState, memory: Memory) -> LSTMStep:
        """Attend and advance the LSTM; word_gates [B, K, 4H] is the word's share of its gates."""
        attended = self.attend(state.h, memory, state.position)
        state = self.advance(word_gates, state, attended.context)
        return attended, state.h, state

    def attend(self, h: Tensor, memory: Memory, position: int) -> AttentionOutput:
        """Attend from h and multiply the context by beta = sigmoid(f_beta(h)) (section 4.2.1)."""
        attended = self.attention(h, memory, position)
        if self.beta is None:
            return attended
        beta = torch.sigmoid(self.beta(h))  # [B, K, 1 or D]
        return replace(attended, context=beta * attended.context, beta=beta.mean(-1))

    def advance(self, word_gates: Tensor, state: StateT, inputs: Tensor) -> StateT:
        """Advance the LSTM by equations 1 to 3; inputs [B, K, input_dim] come with word and h."""
        gates = word_gates + self.state_gates(torch.cat([state.h, inputs], dim=-1))
        h, c = lstm_cell(gates, state.c)
        return replace(state, h=h, c=c, position=state.position + 1)

    def compute_logits(self, words: Tensor, output: Tensor, context: Tensor) -> Tensor:
        """Return logits [..., V] from the embedded word [..., E], `output`, and context.

        Equation 7 with the original code's dropout and tanh; or one layer from the output.
        """
        hidden = self.dropout(output)
        if self.from_h is not None and self.from_context is not None:
            hidden = torch.tanh(words + self.from_h(hidden) + self.from_context(context))
            hidden = self.dropout(hidden)
        return self.vocabulary(hidden)


@torch.no_grad()
def init_gates(bias: Tensor, recurrent: Tensor) -> None:
    """Initialise bias [4H] and recurrent weights [4H, H]: orthogonal, the forget gate open."""
    hidden_dim = recurrent.shape[1]
    bias.zero_()
    bias[hidden_dim : 2 * hidden_dim] = 1.0
    for rows in recurrent.split(hidden_dim):
        nn.init.orthogonal_(rows)


def lstm_cell(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Return h and c after the gates [..., 4H]: input, forget, output and candidate."""
    i, f, o, g = gates.chunk(4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c
