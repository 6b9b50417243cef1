"""Anderson et al., 2018, section 3.2, against a plain loop over floats."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import plain
import pytest
import torch
from plain import Vector
from torch import nn

from captioner.config import AttentionConfig, DecoderConfig
from captioner.models.attention.attention import AdditiveScore, Attention, GlobalWindow, SoftSelect
from captioner.models.decoders.top_down import TopDownDecoder
from captioner.types import Grid

V, ROWS, COLUMNS, D, H, E, A = 9, 2, 2, 5, 4, 3, 6
STEPS = [[[1, 1], [1, 1]], [[4, 5], [6, 4]], [[7, 4], [3, 8]]]  # two hypotheses of two photos
State = tuple[Vector, Vector, Vector, Vector]  # h and c of the attention LSTM, of the other


def random_decoder(**settings: Any) -> TopDownDecoder:
    torch.manual_seed(0)
    score = AdditiveScore(AttentionConfig(dim=A), query_dim=H, feature_dim=D)
    attention = Attention(
        score, GlobalWindow(AttentionConfig(), query_dim=H), SoftSelect(AttentionConfig())
    )
    config = DecoderConfig(hidden_dim=H, embed_dim=E, **{"gate": "none", **settings})
    decoder = TopDownDecoder(config, lambda _=None: attention, vocabulary_size=V, feature_dim=D)
    for parameter in decoder.parameters():
        nn.init.normal_(parameter, std=0.8)
    return decoder.double().eval()


def random_grid(photos: int = 2) -> Grid:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(photos, ROWS * COLUMNS, D, dtype=torch.double, generator=generator)
    return Grid(features, ROWS, COLUMNS)


def plain_start(decoder: TopDownDecoder, cells: list[Vector]) -> State:
    h = [math.tanh(x) for x in plain.linear(decoder.initial_h, plain.mean(cells))]
    c = [math.tanh(x) for x in plain.linear(decoder.initial_c, plain.mean(cells))]
    return h, c, h, c


def plain_step(
    decoder: TopDownDecoder, token: int, state: State, cells: list[Vector], values: list[Vector]
) -> dict[str, Any]:
    """cells: what the state is compared with. values: what contexts and the mean are made of."""
    h1, c1, h2, c2 = state
    word = decoder.embedding.weight[token].tolist()
    # equation 2, its one matrix in three parts
    parts = (
        plain.linear(decoder.word_gates, word),
        plain.linear(decoder.state_gates, h1 + h2),
        plain.linear(decoder.mean_gates, plain.mean(values)),
    )
    h1, c1 = plain.lstm([sum(gate) for gate in zip(*parts, strict=True)], c1)
    score = decoder.attention.score
    query = plain.linear(score.query, h1)
    energies = []
    for cell in cells:
        key = plain.linear(score.key, cell)
        hidden = [math.tanh(q + k) for q, k in zip(query, key, strict=True)]
        energies += plain.linear(score.energy, hidden)  # equation 3
    shares = plain.softmax(energies)  # equation 4
    context = plain.expectation(shares, values)  # equation 5
    if decoder.beta is not None:
        gate = [plain.sigmoid(x) for x in plain.linear(decoder.beta, h1)]
        context = [b * x for b, x in zip(gate * (D // len(gate)), context, strict=True)]
    read = plain.linear(decoder.language_gates, context + h1 + h2)  # equation 6
    h2, c2 = plain.lstm(read, c2)
    deep = (word, plain.linear(decoder.from_h, h2), plain.linear(decoder.from_context, context))
    hidden = [math.tanh(sum(each)) for each in zip(*deep, strict=True)]
    logits = plain.linear(decoder.vocabulary, hidden)
    return {"logits": logits, "map": shares, "state": (h1, c1, h2, c2)}


@pytest.mark.parametrize("gate", ["none", "scalar", "vector"])
@pytest.mark.parametrize("local", [True, False])
def test_steps_are_the_equations_in_a_plain_loop(gate: Any, local: bool) -> None:
    decoder, grid = random_decoder(gate=gate), random_grid()
    decoder.attention.local = local
    grid = replace(grid, local=torch.randn_like(grid.features))
    vectors = (grid.local if local else grid.features).tolist()
    memory = decoder.prepare(grid)
    state = decoder.start(memory, 2)
    expected = [[plain_start(decoder, values)] * 2 for values in vectors]
    for tokens in STEPS:
        logits, attended, state = decoder.step(torch.tensor(tokens), state, memory)
        for b, k in product(range(2), range(2)):
            cells = grid.features[b].tolist()
            step = plain_step(decoder, tokens[b][k], expected[b][k], cells, vectors[b])
            expected[b][k] = step["state"]
            assert logits[b, k].tolist() == pytest.approx(step["logits"], abs=1e-10)
            assert attended.weights[b, k].tolist() == pytest.approx(step["map"], abs=1e-10)
            found = (state.h, state.c, state.language_h, state.language_c)
            for value, wanted in zip(found, step["state"], strict=True):
                assert value[b, k].tolist() == pytest.approx(wanted, abs=1e-10)


def test_reorder_takes_both_lstms_along() -> None:
    decoder, grid = random_decoder(), random_grid(3)
    memory = decoder.prepare(grid)
    tokens = torch.tensor([[4, 5], [6, 7], [3, 8]])
    _, _, state = decoder.step(tokens, decoder.start(memory, 2), memory)
    photos, beams = torch.tensor([2, 0]), torch.tensor([[1, 1], [0, 1]])
    chosen = decoder.reorder(state, photos, beams)
    assert chosen.position == state.position == 1
    for name in ("h", "c", "language_h", "language_c", "mean_gates"):
        before, after = getattr(state, name), getattr(chosen, name)
        for row, (photo, beam) in enumerate([(2, 1), (2, 1), (0, 0), (0, 1)]):
            assert torch.equal(after.flatten(0, 1)[row], before[photo, beam]), name
