"""Equations 1 to 7 and section 4.2.1 of Show, Attend and Tell against plain loops over floats."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import plain
import pytest
import torch
from torch import Tensor, nn

from captioner.config import AttentionConfig, DecoderConfig
from captioner.models.attention.attention import AdditiveScore, Attention, GlobalWindow, SoftSelect
from captioner.models.decoders.lstm import LSTMDecoder, LSTMState
from captioner.types import Grid

V, ROWS, COLUMNS, D, H, E, A = 9, 2, 2, 5, 4, 3, 6
L = ROWS * COLUMNS
CLOSE = 1e-10  # all is float64


def random_decoder(seed: int = 0, *, local: bool = False, **settings: Any) -> LSTMDecoder:
    """In float64, in eval mode, with weights so large that nothing is nearly linear."""
    torch.manual_seed(seed)
    attention = Attention(
        AdditiveScore(AttentionConfig(dim=A), query_dim=H, feature_dim=D),
        GlobalWindow(AttentionConfig(), query_dim=H),
        SoftSelect(AttentionConfig()),
        local=local,
    )
    config = DecoderConfig(hidden_dim=H, embed_dim=E, **settings)
    decoder = LSTMDecoder(config, lambda _=None: attention, vocabulary_size=V, feature_dim=D)
    for parameter in decoder.parameters():
        nn.init.normal_(parameter, std=0.7)
    return decoder.double().eval()


def random_grid(photos: int, seed: int = 1) -> Grid:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(photos, L, D, dtype=torch.double, generator=generator)
    return Grid(features, ROWS, COLUMNS)


# --- a plain decoder: lists of floats, one caption, one step --------------------------------------


def plain_start(decoder: LSTMDecoder, cells: list[list[float]]) -> tuple[list[float], list[float]]:
    h = [math.tanh(x) for x in plain.linear(decoder.initial_h, plain.mean(cells))]
    c = [math.tanh(x) for x in plain.linear(decoder.initial_c, plain.mean(cells))]
    return h, c


def plain_step(
    decoder: LSTMDecoder,
    token: int,
    h: list[float],
    c: list[float],
    cells: list[list[float]],
    values: list[list[float]] | None = None,
) -> dict[str, Any]:
    """values: what contexts are made of, if not the cells themselves."""
    score = decoder.attention.score
    energies = []
    for cell in cells:  # equation 4
        pairs = zip(plain.linear(score.key, cell), plain.linear(score.query, h), strict=True)
        energies += plain.linear(score.energy, [math.tanh(a + b) for a, b in pairs])
    attention = plain.softmax(energies)  # equation 5
    context = plain.expectation(attention, values or cells)
    beta = None
    if decoder.beta is not None:  # section 4.2.1
        gate = [plain.sigmoid(x) for x in plain.linear(decoder.beta, h)]
        beta = sum(gate) / len(gate)
        gate = gate * D if len(gate) == 1 else gate
        context = [b * z for b, z in zip(gate, context, strict=True)]
    word = decoder.embedding.weight[token].tolist()
    pairs = zip(
        plain.linear(decoder.word_gates, word),
        plain.linear(decoder.state_gates, h + context),
        strict=True,
    )
    h, c = plain.lstm([a + b for a, b in pairs], c)
    if decoder.from_h is not None:  # equation 7, with the original code's tanh
        from_h, from_context = (
            plain.linear(decoder.from_h, h),
            plain.linear(decoder.from_context, context),
        )
        hidden = [math.tanh(word[n] + from_h[n] + from_context[n]) for n in range(E)]
    else:
        hidden = h
    return {
        "logits": plain.linear(decoder.vocabulary, hidden),
        "map": attention,
        "context": context,
        "beta": beta,
        "h": h,
        "c": c,
    }


SETTINGS = [
    {"gate": gate, "output": output}
    for gate, output in product(("none", "scalar", "vector"), ("deep", "plain"))
]
SETTINGS.append({"gate": "vector", "tie_embeddings": True})


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_steps_are_the_papers_equations_in_a_plain_loop(settings: dict[str, Any]) -> None:
    decoder, grid = random_decoder(**settings), random_grid(2)
    memory = decoder.prepare(grid)
    beams = 2
    state = decoder.start(memory, beams)
    plain = [[plain_start(decoder, cells)] * beams for cells in grid.features.tolist()]
    for tokens in ([[1, 1], [1, 1]], [[4, 5], [6, 4]], [[7, 4], [3, 8]]):
        logits, attended, state = decoder.step(torch.tensor(tokens), state, memory)
        for b, k in product(range(2), range(beams)):
            cells = grid.features[b].tolist()
            expected = plain_step(decoder, tokens[b][k], *plain[b][k], cells)
            plain[b][k] = (expected["h"], expected["c"])
            found = {
                "logits": logits,
                "map": attended.weights,
                "context": attended.context,
                "h": state.h,
                "c": state.c,
            }
            for name, value in found.items():
                assert value[b, k].tolist() == pytest.approx(expected[name], abs=CLOSE), name
            if settings["gate"] == "none":
                assert attended.beta is None
            else:
                assert attended.beta[b, k].item() == pytest.approx(expected["beta"], abs=CLOSE)


# --- teacher forcing ------------------------------------------------------------------------------

LENGTH_SETS = [[5, 5, 3, 1], [6, 5, 4, 3, 2, 1], [1]]


def random_captions(lengths: list[int], seed: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, V, (len(lengths), max(lengths)), generator=generator)
    tokens[:, 0] = 1
    for row, length in enumerate(lengths):
        tokens[row, length:] = 0
    return tokens


def stepwise(decoder: LSTMDecoder, grid: Grid, tokens: Tensor, lengths: list[int]) -> list[Any]:
    """For each caption by itself, its logits, maps, entropy and beta, step by step."""
    found = []
    for row, length in enumerate(lengths):
        alone = Grid(grid.features[row : row + 1], ROWS, COLUMNS)
        memory = decoder.prepare(alone)
        state = decoder.start(memory)
        steps = []
        for step in range(length):
            token = tokens[row : row + 1, step : step + 1]
            logits, attended, state = decoder.step(token, state, memory)
            steps.append((logits[0, 0], attended))
        found.append(steps)
    return found


@pytest.mark.parametrize("lengths", LENGTH_SETS, ids=str)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_teacher_forcing_equals_the_steps(lengths: list[int], settings: dict[str, Any]) -> None:
    decoder, grid = random_decoder(**settings), random_grid(len(lengths))
    tokens = random_captions(lengths)
    forced = decoder(decoder.prepare(grid), tokens, torch.tensor(lengths))
    steps = stepwise(decoder, grid, tokens, lengths)
    assert forced.logits.shape == (sum(lengths), V)
    assert forced.maps.shape == (len(lengths), max(lengths), L)
    close = {"rtol": CLOSE, "atol": CLOSE}
    places = [(row, step) for step in range(max(lengths)) for row in range(len(lengths))]
    places = [(row, step) for row, step in places if step < lengths[row]]
    for place, (row, step) in enumerate(places):
        logits, attended = steps[row][step]
        torch.testing.assert_close(forced.logits[place], logits, **close)
        torch.testing.assert_close(forced.maps[row, step], attended.weights[0, 0], **close)
        torch.testing.assert_close(forced.entropy[row, step], attended.entropy[0, 0], **close)
        assert forced.log_prob[row, step] == 0
        if forced.beta is not None:
            torch.testing.assert_close(forced.beta[row, step], attended.beta[0, 0], **close)
    assert (forced.beta is None) == (settings["gate"] == "none")


# --- hypotheses -----------------------------------------------------------------------------------


def test_reorder_takes_the_named_hypotheses_of_the_named_photos() -> None:
    h = torch.arange(3 * 2 * H, dtype=torch.double).reshape(3, 2, H)
    photos, beams = torch.tensor([2, 0]), torch.tensor([[1, 1], [0, 1]])
    state = random_decoder().reorder(LSTMState(h=h, c=-h), photos, beams)
    assert torch.equal(state.h, torch.stack([h[2, [1, 1]], h[0, [0, 1]]]))
    assert torch.equal(state.c, -state.h)


# --- construction ---------------------------------------------------------------------------------


def fresh_decoder(**settings: Any) -> LSTMDecoder:
    attention = Attention(
        AdditiveScore(AttentionConfig(dim=A), query_dim=H, feature_dim=D),
        GlobalWindow(AttentionConfig(), query_dim=H),
        SoftSelect(AttentionConfig()),
    )
    config = DecoderConfig(hidden_dim=H, embed_dim=E, **settings)
    return LSTMDecoder(config, lambda _=None: attention, vocabulary_size=V, feature_dim=D)


def test_fresh_weights_leave_the_forget_gate_open_and_the_recurrence_orthogonal() -> None:
    decoder = fresh_decoder()
    bias = decoder.word_gates.bias
    assert bias.tolist() == [0.0] * H + [1.0] * H + [0.0] * (2 * H)
    for gate in range(4):
        recurrence = decoder.state_gates.weight[gate * H : (gate + 1) * H, :H]
        torch.testing.assert_close(recurrence @ recurrence.T, torch.eye(H))
    assert (decoder.embedding.weight[0] == 0).all()
    assert (decoder.embedding.weight[1:] != 0).any(1).all()
    assert (decoder.vocabulary.bias == 0).all()


def test_deep_output_drops_out_both_the_state_and_the_last_layer_as_the_original_code() -> None:
    decoder = random_decoder(dropout=0.999999).train()
    memory = decoder.prepare(random_grid(1))
    logits, _, _ = decoder.step(torch.tensor([[4]]), decoder.start(memory), memory)
    torch.testing.assert_close(logits[0, 0], decoder.vocabulary.bias)
    seen: list[Tensor] = []
    decoder.from_h.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    decoder.step(torch.tensor([[4]]), decoder.start(memory), memory)
    assert (seen[0] == 0).all()
