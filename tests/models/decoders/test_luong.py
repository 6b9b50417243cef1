"""Luong et al., 2015, sections 3.1 and 3.3, against a plain loop over floats."""

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
from captioner.models.attention.attention import Attention, GlobalWindow, SoftSelect
from captioner.models.attention.scores import GeneralScore
from captioner.models.decoders.luong import LuongDecoder
from captioner.types import Grid

V, ROWS, COLUMNS, D, H, E = 9, 2, 2, 5, 4, 3
L = ROWS * COLUMNS
STEPS = [[[1, 1], [1, 1]], [[4, 5], [6, 4]], [[7, 4], [3, 8]]]  # two hypotheses of two photos


def random_decoder(**settings: Any) -> LuongDecoder:
    torch.manual_seed(0)
    attention = Attention(
        GeneralScore(AttentionConfig(), query_dim=H, feature_dim=D),
        GlobalWindow(AttentionConfig(), query_dim=H),
        SoftSelect(AttentionConfig()),
    )
    config = DecoderConfig(hidden_dim=H, embed_dim=E, **{"gate": "none", **settings})
    decoder = LuongDecoder(config, lambda _=None: attention, vocabulary_size=V, feature_dim=D)
    for parameter in decoder.parameters():
        nn.init.normal_(parameter, std=0.8)
    return decoder.double().eval()


def random_grid(photos: int = 2) -> Grid:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(photos, L, D, dtype=torch.double, generator=generator)
    return Grid(features, ROWS, COLUMNS)


def plain_start(decoder: LuongDecoder, cells: list[Vector]) -> tuple[Vector, Vector, Vector]:
    """h, c, and an attentional vector of zeros."""
    h = [math.tanh(x) for x in plain.linear(decoder.initial_h, plain.mean(cells))]
    c = [math.tanh(x) for x in plain.linear(decoder.initial_c, plain.mean(cells))]
    return h, c, [0.0] * E


def plain_step(
    decoder: LuongDecoder,
    token: int,
    state: tuple[Vector, Vector, Vector],
    cells: list[Vector],
    values: list[Vector],
) -> dict[str, Any]:
    """cells: what the state is compared with. values: what contexts are made of."""
    h, c, fed = state
    read = h + (fed if decoder.input_feeding else [])
    word = plain.linear(decoder.word_gates, decoder.embedding.weight[token].tolist())
    rest = plain.linear(decoder.state_gates, read)
    h, c = plain.lstm([a + b for a, b in zip(word, rest, strict=True)], c)
    keys = [plain.linear(decoder.attention.score.key, cell) for cell in cells]
    shares = plain.softmax([plain.dot(h, key) for key in keys])  # the query is h_t, not h_{t-1}
    context = plain.expectation(shares, values)
    beta = None
    if decoder.beta is not None:
        gate = [plain.sigmoid(x) for x in plain.linear(decoder.beta, h)]
        beta = sum(gate) / len(gate)
        gate = gate * D if len(gate) == 1 else gate
        context = [b * x for b, x in zip(gate, context, strict=True)]
    fed = [math.tanh(x) for x in plain.linear(decoder.attentional, context + h)]  # equation 5
    logits = plain.linear(decoder.vocabulary, fed)  # equation 6
    return {"logits": logits, "map": shares, "beta": beta, "state": (h, c, fed)}


@pytest.mark.parametrize("gate", ["none", "scalar", "vector"])
@pytest.mark.parametrize("input_feeding", [True, False])
@pytest.mark.parametrize("local", [True, False])
def test_steps_are_the_equations_in_a_plain_loop(
    input_feeding: bool, gate: Any, local: bool
) -> None:
    decoder, grid = random_decoder(input_feeding=input_feeding, gate=gate), random_grid()
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
            for found, wanted in zip(
                (state.h, state.c, state.attentional), step["state"], strict=True
            ):
                assert found[b, k].tolist() == pytest.approx(wanted, abs=1e-10)
            if attended.beta is None:
                assert gate == "none"
            else:
                assert attended.beta[b, k].item() == pytest.approx(step["beta"], abs=1e-10)


@pytest.mark.parametrize("input_feeding", [True, False])
def test_only_input_feeding_lets_the_context_change_the_next_state(input_feeding: bool) -> None:
    decoder, grid = random_decoder(input_feeding=input_feeding), random_grid()
    memory = decoder.prepare(grid)
    _, _, state = decoder.step(torch.tensor(STEPS[0]), decoder.start(memory, 2), memory)
    _, _, seen = decoder.step(torch.tensor(STEPS[1]), state, memory)
    other = replace(state, attentional=-state.attentional)
    _, _, unseen = decoder.step(torch.tensor(STEPS[1]), other, memory)
    assert torch.equal(seen.h, unseen.h) != input_feeding
    width = decoder.state_gates.in_features
    assert width == (H + E if input_feeding else H)


def test_reorder_takes_the_input_feeding_along() -> None:
    decoder, grid = random_decoder(), random_grid(3)
    memory = decoder.prepare(grid)
    tokens = torch.tensor([[4, 5], [6, 7], [3, 8]])
    _, _, state = decoder.step(tokens, decoder.start(memory, 2), memory)
    photos, beams = torch.tensor([2, 0]), torch.tensor([[1, 1], [0, 1]])
    chosen = decoder.reorder(state, photos, beams)
    assert chosen.position == state.position == 1
    for name in ("h", "c", "attentional"):
        given = getattr(state, name)
        assert torch.equal(
            getattr(chosen, name), torch.stack([given[2, [1, 1]], given[0, [0, 1]]])
        ), name
