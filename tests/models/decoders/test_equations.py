"""Every decoder with an LSTM against its paper's equations, as plain loops over floats.

Show, Attend and Tell, equations 1 to 7 and section 4.2.1; Luong et al., 2015, sections 3.1 and 3.3;
Anderson et al., 2018, section 3.2; Show and Tell, section 3.1.
"""

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
from captioner.models.build import build_decoder

V, ROWS, COLUMNS, D, H, E = 9, 2, 3, 5, 4, 3
L = ROWS * COLUMNS
STEPS = [[[1, 1], [1, 1]], [[4, 5], [6, 4]], [[7, 4], [3, 8]]]  # two hypotheses of two photos
STATES = {
    "lstm": ("h", "c"),
    "luong": ("h", "c", "attentional"),
    "top_down": ("h", "c", "language_h", "language_c"),
    "mean": ("h", "c"),
}
SETTINGS: list[dict[str, Any]] = [
    *(
        {"kind": "lstm", "gate": g, "output": o}
        for g in ("none", "scalar")
        for o in ("deep", "plain")
    ),
    {"kind": "lstm", "gate": "vector", "tie_embeddings": True},
    *(
        {"kind": "luong", "gate": gate, "input_feeding": feeding}
        for gate, feeding in product(("none", "scalar", "vector"), (True, False))
    ),
    *({"kind": "top_down", "gate": gate} for gate in ("none", "scalar", "vector")),
    *({"kind": "mean", "tie_embeddings": tied} for tied in (True, False)),
]


def random_decoder(settings: dict[str, Any], values: Any = "contextual") -> Any:
    """In float64, in eval mode, with weights so large that nothing is nearly linear."""
    torch.manual_seed(0)
    score: Any = "general" if settings["kind"] == "luong" else "additive"
    decoder = build_decoder(
        DecoderConfig(hidden_dim=H, embed_dim=E, **settings),
        AttentionConfig(score=score, dim=6, values=values),
        feature_dim=D,
        vocabulary_size=V,
    )
    for parameter in decoder.parameters():
        nn.init.normal_(parameter, std=0.8)
    return decoder.double().eval()


def added(*vectors: Vector) -> Vector:
    return [sum(each) for each in zip(*vectors, strict=True)]


def tanh(vector: Vector) -> Vector:
    return [math.tanh(x) for x in vector]


def plain_start(decoder: Any, kind: str, values: list[Vector]) -> tuple[Vector, ...]:
    if kind == "mean":  # the image is the first word: equation 10
        gates = plain.linear(decoder.word_gates, plain.linear(decoder.photo, plain.mean(values)))
        return plain.lstm(gates, [0.0] * H)
    h = tanh(plain.linear(decoder.initial_h, plain.mean(values)))
    c = tanh(plain.linear(decoder.initial_c, plain.mean(values)))
    return (h, c, *{"luong": ([0.0] * E,), "top_down": (h, c)}.get(kind, ()))


def plain_attention(
    decoder: Any, h: Vector, cells: list[Vector], values: list[Vector]
) -> tuple[Vector, Vector, float | None]:
    """The map, the gated context and the mean of the gate."""
    score = decoder.attention.score
    energies = []
    for cell in cells:  # equation 4, or Luong's `general`
        key = plain.linear(score.key, cell)
        if hasattr(score, "energy"):
            energies += plain.linear(score.energy, tanh(added(key, plain.linear(score.query, h))))
        else:
            energies.append(plain.dot(h, key))
    shares = plain.softmax(energies)  # equation 5
    context = plain.expectation(shares, values)
    if decoder.beta is None:
        return shares, context, None
    gate = [plain.sigmoid(x) for x in plain.linear(decoder.beta, h)]  # section 4.2.1
    context = [b * z for b, z in zip(gate * (D // len(gate)), context, strict=True)]
    return shares, context, sum(gate) / len(gate)


def plain_step(
    decoder: Any,
    settings: dict[str, Any],
    token: int,
    state: tuple[Vector, ...],
    cells: list[Vector],
    values: list[Vector],
) -> dict[str, Any]:
    """cells: what the state is compared with. values: what contexts and means are made of."""
    kind, (h, c, *rest) = settings["kind"], state
    word = decoder.embedding.weight[token].tolist()
    gates = plain.linear(decoder.word_gates, word)
    if kind == "lstm":
        shares, context, beta = plain_attention(decoder, h, cells, values)
        h, c = plain.lstm(added(gates, plain.linear(decoder.state_gates, h + context)), c)
        hidden, state = h, (h, c)
        if decoder.from_h is not None:  # equation 7, with the original code's tanh
            from_h = plain.linear(decoder.from_h, h)
            hidden = tanh(added(word, from_h, plain.linear(decoder.from_context, context)))
    elif kind == "luong":  # the query is h_t, not h_{t-1}
        fed = rest[0] if settings["input_feeding"] else []
        h, c = plain.lstm(added(gates, plain.linear(decoder.state_gates, h + fed)), c)
        shares, context, beta = plain_attention(decoder, h, cells, values)
        hidden = tanh(plain.linear(decoder.attentional, context + h))  # equation 5
        state = (h, c, hidden)
    elif kind == "top_down":
        h2, c2 = rest
        mean_gates = plain.linear(decoder.mean_gates, plain.mean(values))
        inner = plain.linear(decoder.state_gates, h + h2)
        h, c = plain.lstm(added(gates, inner, mean_gates), c)  # equation 2
        shares, context, beta = plain_attention(decoder, h, cells, values)  # equations 3 to 5
        h2, c2 = plain.lstm(plain.linear(decoder.language_gates, context + h + h2), c2)  # 6
        from_h = plain.linear(decoder.from_h, h2)
        hidden = tanh(added(word, from_h, plain.linear(decoder.from_context, context)))
        state = (h, c, h2, c2)
    else:
        h, c = plain.lstm(added(gates, plain.linear(decoder.state_gates, h)), c)
        shares, context, beta = [1 / L] * L, plain.mean(values), None
        hidden, state = tanh(plain.linear(decoder.from_h, h)), (h, c)
    logits = plain.linear(decoder.vocabulary, hidden)
    return {"logits": logits, "map": shares, "context": context, "beta": beta, "state": state}


@pytest.mark.parametrize("values", ["contextual", "local"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_steps_are_the_equations_in_a_plain_loop(settings: dict[str, Any], values: Any) -> None:
    kind = settings["kind"]
    if kind == "mean" and values == "local":
        return
    decoder, grid = random_decoder(settings, values), plain.grid(2, ROWS, COLUMNS, D)
    grid = replace(grid, local=torch.randn_like(grid.features))
    vectors = (grid.local if values == "local" else grid.features).tolist()
    memory = decoder.prepare(grid)
    state = decoder.start(memory, 2)
    expected = [[plain_start(decoder, kind, of_photo)] * 2 for of_photo in vectors]
    for tokens in STEPS:
        logits, attended, state = decoder.step(torch.tensor(tokens), state, memory)
        for b, k in product(range(2), range(2)):
            cells = grid.features[b].tolist()
            step = plain_step(decoder, settings, tokens[b][k], expected[b][k], cells, vectors[b])
            expected[b][k] = step["state"]
            found = {"logits": logits, "map": attended.weights, "context": attended.context}
            for name, value in found.items():
                assert value[b, k].tolist() == pytest.approx(step[name], abs=1e-10), name
            for name, wanted in zip(STATES[kind], step["state"], strict=True):
                assert getattr(state, name)[b, k].tolist() == pytest.approx(wanted, abs=1e-10), name
            beta = None if attended.beta is None else attended.beta[b, k].item()
            assert beta == pytest.approx(step["beta"], abs=1e-10)


@pytest.mark.parametrize("kind", STATES)
def test_reorder_takes_every_part_of_the_state_along(kind: str) -> None:
    decoder = random_decoder({"kind": kind})
    memory = decoder.prepare(plain.grid(3, ROWS, COLUMNS, D))
    tokens = torch.tensor([[4, 5], [6, 7], [3, 8]])
    _, _, state = decoder.step(tokens, decoder.start(memory, 2), memory)
    photos, beams = torch.tensor([2, 0]), torch.tensor([[1, 1], [0, 1]])
    chosen = decoder.reorder(state, photos, beams)
    assert chosen.position == state.position == 1
    names = [name for name, value in vars(state).items() if isinstance(value, torch.Tensor)]
    assert set(STATES[kind]) <= set(names)
    for name in names:
        before, after = getattr(state, name), getattr(chosen, name)
        assert torch.equal(after, torch.stack([before[2, [1, 1]], before[0, [0, 1]]])), name


def test_show_and_tell_sees_only_the_mean_of_the_cells() -> None:
    decoder, grid = random_decoder({"kind": "mean"}), plain.grid(2, ROWS, COLUMNS, D)
    tokens, lengths = torch.tensor([[1, 4, 5], [1, 6, 0]]), torch.tensor([3, 2])

    def logits(features: torch.Tensor) -> torch.Tensor:
        return decoder(decoder.prepare(replace(grid, features=features)), tokens, lengths).logits

    expected = logits(grid.features)
    mean = grid.features.mean(1, keepdim=True).expand(-1, L, -1)
    for same in (grid.features[:, [4, 2, 0, 5, 1, 3]], mean):
        torch.testing.assert_close(logits(same), expected, rtol=1e-12, atol=1e-12)
    assert (logits(grid.features + 0.1) - expected).abs().max() > 1e-3


def test_fresh_weights_leave_the_forget_gate_open_and_the_recurrence_orthogonal() -> None:
    sizes: Any = {"feature_dim": D, "vocabulary_size": V}
    decoder: Any = build_decoder(
        DecoderConfig(hidden_dim=H, embed_dim=E), AttentionConfig(dim=6), **sizes
    )
    assert decoder.word_gates.bias.tolist() == [0.0] * H + [1.0] * H + [0.0] * (2 * H)
    for gate in range(4):
        recurrence = decoder.state_gates.weight[gate * H : (gate + 1) * H, :H]
        torch.testing.assert_close(recurrence @ recurrence.T, torch.eye(H))
    assert (decoder.embedding.weight[0] == 0).all()
    assert (decoder.embedding.weight[1:] != 0).any(1).all()
    assert (decoder.vocabulary.bias == 0).all()


def test_deep_output_drops_out_both_the_state_and_the_last_layer_as_the_original_code() -> None:
    decoder = random_decoder({"kind": "lstm", "dropout": 0.999999}).train()
    memory = decoder.prepare(plain.grid(1, ROWS, COLUMNS, D))
    seen: list[torch.Tensor] = []
    decoder.from_h.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    logits, _, _ = decoder.step(torch.tensor([[4]]), decoder.start(memory), memory)
    torch.testing.assert_close(logits[0, 0], decoder.vocabulary.bias)
    assert (seen[0] == 0).all()
