"""The paper's decoder: teacher forcing, fresh weights and dropout; see also test_equations.py."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import plain
import pytest
import torch
from torch import Tensor, nn

from captioner.config import AttentionConfig, DecoderConfig
from captioner.models.attention.attention import AdditiveScore, Attention, GlobalWindow, SoftSelect
from captioner.models.decoders.lstm import LSTMDecoder
from captioner.types import Grid

V, ROWS, COLUMNS, D, H, E, A = 9, 2, 2, 5, 4, 3, 6
L = ROWS * COLUMNS
CLOSE = 1e-10  # all is float64


def fresh_decoder(**settings: Any) -> LSTMDecoder:
    torch.manual_seed(0)
    attention = Attention(
        AdditiveScore(AttentionConfig(dim=A), query_dim=H, feature_dim=D),
        GlobalWindow(AttentionConfig(), query_dim=H),
        SoftSelect(AttentionConfig()),
    )
    config = DecoderConfig(hidden_dim=H, embed_dim=E, **settings)
    return LSTMDecoder(config, lambda _=None: attention, vocabulary_size=V, feature_dim=D)


def random_decoder(**settings: Any) -> LSTMDecoder:
    """In float64, in eval mode, with weights so large that nothing is nearly linear."""
    decoder = fresh_decoder(**settings)
    for parameter in decoder.parameters():
        nn.init.normal_(parameter, std=0.7)
    return decoder.double().eval()


random_grid = partial(plain.grid, rows=ROWS, columns=COLUMNS, dim=D)

SETTINGS = [
    {"gate": gate, "output": output}
    for gate, output in product(("none", "scalar", "vector"), ("deep", "plain"))
]
SETTINGS.append({"gate": "vector", "tie_embeddings": True})


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


# --- construction ---------------------------------------------------------------------------------


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
