"""What words lose when attention is replaced or attended cells are deleted, against plain loops."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import tiny
import torch

from captioner.evaluation.faithfulness import REPLACEMENTS, AttentionMeasure, attention_summary
from captioner.generation import Hypothesis, force_decode
from captioner.models.attention.attention import Memory
from captioner.models.decoders.base import Decoder
from captioner.types import Grid

CAPTIONS = [[5, 7, 4, 9], [8, 6]]


def tiny_decoder(select: str, *, columns: int = 3, **attention: object) -> tuple[Decoder, Grid]:
    model, _, _ = tiny.model(select=select, **attention)
    with torch.no_grad():
        # The map depends on the word; of hard attention, the cell too.
        model.decoder.attention.score.query.weight *= 20 if select == "hard" else 4
    generator = torch.Generator().manual_seed(1)
    return model.eval().decoder, Grid(
        torch.randn(1, 2 * columns, 16, generator=generator), 2, columns
    )


def scored(decoder: Decoder, grid: Grid, tokens: list[int]) -> Hypothesis:
    return force_decode(decoder, grid, [[tokens]])[0][0]


@torch.no_grad()
def log_probs_with_context(
    decoder: Decoder, grid: Grid, tokens: list[int], contexts: list[torch.Tensor]
) -> np.ndarray:
    """Step by step, with every cell's vector replaced by the context that a word is to get."""
    memory = decoder.prepare(grid)
    state = decoder.start(memory)
    found = []
    for last, token, context in zip([1, *tokens], tokens, contexts, strict=False):
        same = Grid(context.expand_as(grid.features), grid.height, grid.width)
        logits, _, state = decoder.step(torch.tensor([[last]]), state, Memory(same, memory.keys))
        found.append(torch.log_softmax(logits[0, 0], -1)[token].item())
    return np.array(found)


@pytest.mark.parametrize(("select", "temperature"), [("soft", 1.0), ("hard", 1.0), ("soft", 0.5)])
def test_losses_are_those_of_contexts_replaced_by_hand(select: str, temperature: float) -> None:
    decoder, grid = tiny_decoder(select, temperature=temperature)
    measure = AttentionMeasure(decoder, seed=4)
    measure(replace(grid, features=grid.features.flip(1)), CAPTIONS)  # no image changes the next
    losses = measure(grid, CAPTIONS)
    own = [scored(decoder, grid, tokens) for tokens in CAPTIONS]
    features = grid.features[0]
    for kind in ("frozen", "uniform"):
        expected = []
        for tokens, hypothesis in zip(CAPTIONS, own, strict=True):
            first = torch.from_numpy(hypothesis.maps[0])
            if kind == "uniform":
                context = features.mean(0)
            elif select == "hard":
                context = features[first.argmax()]
            else:
                context = first @ features
            after = log_probs_with_context(decoder, grid, tokens, [context] * len(tokens))
            expected.append(hypothesis.log_probs - after)
        np.testing.assert_allclose(losses[kind], np.concatenate(expected), atol=1e-5)
        assert np.abs(losses[kind]).max() > 1e-3
    assert losses["frozen"][0] == pytest.approx(0, abs=1e-6), "the first word keeps its attention"
    assert losses["frozen"][4] == pytest.approx(0, abs=1e-6)
    changes = [
        float(a.argmax() != b.argmax())
        for h in own
        for a, b in zip(h.maps, h.maps[1:], strict=False)
    ]
    assert losses["cell_changes"].tolist() == changes


def test_deletion_takes_the_most_attended_fifth_and_a_random_one_as_control() -> None:
    """The decoder reads local cells, which are deleted with those that its keys are made of."""
    decoder, grid = tiny_decoder("soft", columns=4, values="local")
    grid = replace(grid, local=grid.features.flip(2))
    losses = AttentionMeasure(decoder)(grid, CAPTIONS)

    def lost(tokens: list[int], cells: list[int]) -> np.ndarray:
        features, local = grid.features.clone(), grid.local.clone()
        features[0, cells], local[0, cells] = features[0].mean(0), local[0].mean(0)
        changed = scored(decoder, Grid(features, 2, 4, local), tokens)
        return scored(decoder, grid, tokens).log_probs - changed.log_probs

    expected = []
    for tokens in CAPTIONS:  # a fifth of eight cells is two
        attention = scored(decoder, grid, tokens).maps.sum(0)
        expected.append(lost(tokens, np.argsort(-attention)[:2].tolist()))
    np.testing.assert_allclose(losses["deleted_in_grid"], np.concatenate(expected), atol=1e-5)
    pairs = np.array([lost([5], list(cells)) for cells in combinations(range(8), 2)])
    drawn = set()
    for seed in range(8):
        control = AttentionMeasure(decoder, seed=seed)(grid, [[5]])["deleted_in_grid_control"]
        distance = np.abs(pairs - control).max(1)
        assert distance.min() < 1e-5
        drawn.add(int(distance.argmin()))
    assert len(drawn) > 3


def test_summaries_are_means_over_words_with_intervals_over_images() -> None:
    kinds = [*REPLACEMENTS, "deleted_in_grid", "cell_changes"]
    names = [*kinds, "deleted_in_grid_control"]
    images = [
        {name: np.array([0.0]) for name in names},
        {name: np.array([1.0, 1.0, 1.0]) for name in names},
    ]
    found = attention_summary(images)
    assert list(found) == kinds
    for name, entry in found.items():
        assert entry["value"] == 0.75
        assert entry["interval"] == (0.0, 1.0)
        assert ("control" in entry) == name.startswith("deleted")
    one_word = [image | {"cell_changes": np.array([])} for image in images]
    assert "cell_changes" not in attention_summary(one_word)
    assert attention_summary([]) == {}
