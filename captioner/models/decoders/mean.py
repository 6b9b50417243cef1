"""One vector for the whole image, without attention: the baseline of the comparison."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from captioner.config import DecoderConfig
from captioner.models.attention.attention import Memory
from captioner.models.decoders.base import AttentionFactory
from captioner.models.decoders.lstm import LSTMDecoder, LSTMState
from captioner.types import AttentionOutput, Grid


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

    def lstm_step(
        self, word_gates: Tensor, state: LSTMState, memory: Memory
    ) -> tuple[AttentionOutput, LSTMState]:
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
        return attended, self.advance(word_gates, state, state.h[..., :0])

    def compute_logits(self, words: Tensor, output: Tensor, context: Tensor) -> Tensor:
        assert self.from_h is not None
        return self.vocabulary(self.dropout(torch.tanh(self.from_h(self.dropout(output)))))
