"""Show and Tell, section 3.1, against a plain loop; what it cannot see."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import plain
import pytest
import torch
from plain import Vector
from torch import nn

from captioner.config import DecoderConfig
from captioner.models.attention.attention import Attention
from captioner.models.decoders.mean import MeanDecoder
from captioner.types import Grid

V, ROWS, COLUMNS, D, H, E = 9, 2, 3, 5, 4, 3
L = ROWS * COLUMNS
STEPS = [[[1, 1], [1, 1]], [[4, 5], [6, 4]], [[7, 4], [3, 8]]]


def no_attention(context_dim: int | None = None) -> Attention:
    raise AssertionError("it has none")


def random_decoder(**settings: Any) -> MeanDecoder:
    torch.manual_seed(0)
    config = DecoderConfig(hidden_dim=H, embed_dim=E, **settings)
    decoder = MeanDecoder(config, no_attention, vocabulary_size=V, feature_dim=D)
    for parameter in decoder.parameters():
        nn.init.normal_(parameter, std=0.8)
    return decoder.double().eval()


def random_grid(photos: int = 2) -> Grid:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(photos, L, D, dtype=torch.double, generator=generator)
    return Grid(features, ROWS, COLUMNS)


def plain_read(decoder: MeanDecoder, word: Vector, h: Vector, c: Vector) -> tuple[Vector, Vector]:
    pairs = zip(
        plain.linear(decoder.word_gates, word), plain.linear(decoder.state_gates, h), strict=True
    )
    return plain.lstm([a + b for a, b in pairs], c)


@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_the_photo_is_the_first_word_and_the_rest_a_plain_lstm(tie_embeddings: bool) -> None:
    decoder, grid = random_decoder(tie_embeddings=tie_embeddings), random_grid()
    memory = decoder.prepare(grid)
    state = decoder.start(memory, 2)
    photos = [plain.linear(decoder.photo, plain.mean(cells)) for cells in grid.features.tolist()]
    zero = [0.0] * H
    states = [[plain_read(decoder, photo, zero, zero)] * 2 for photo in photos]  # equation 10
    for tokens in STEPS:
        logits, attended, state = decoder.step(torch.tensor(tokens), state, memory)
        for b, k in product(range(2), range(2)):
            word = decoder.embedding.weight[tokens[b][k]].tolist()
            h, c = states[b][k] = plain_read(decoder, word, *states[b][k])
            hidden = [math.tanh(x) for x in plain.linear(decoder.from_h, h)]
            expected = plain.linear(decoder.vocabulary, hidden)
            assert logits[b, k].tolist() == pytest.approx(expected, abs=1e-10)
            assert state.h[b, k].tolist() == pytest.approx(h, abs=1e-10)
            assert state.c[b, k].tolist() == pytest.approx(c, abs=1e-10)
            assert attended.weights[b, k].tolist() == [pytest.approx(1 / L)] * L
            assert attended.entropy[b, k].item() == pytest.approx(math.log(L))


def test_only_the_mean_of_the_cells_is_seen() -> None:
    decoder, grid = random_decoder(), random_grid()
    tokens, lengths = torch.tensor([[1, 4, 5], [1, 6, 0]]), torch.tensor([3, 2])
    expected = decoder(decoder.prepare(grid), tokens, lengths)
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    shuffled = Grid(grid.features[:, order], ROWS, COLUMNS)
    found = decoder(decoder.prepare(shuffled), tokens, lengths)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-12, atol=1e-12)
    flat = Grid(grid.features.mean(1, keepdim=True).expand(-1, L, -1), ROWS, COLUMNS)
    found = decoder(decoder.prepare(flat), tokens, lengths)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-12, atol=1e-12)
    brighter = Grid(grid.features + 0.1, ROWS, COLUMNS)
    assert (
        decoder(decoder.prepare(brighter), tokens, lengths).logits - expected.logits
    ).abs().max() > 1e-3
