"""The search in fixed shapes: the captions of the other search to the bit, and few waits for the GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from replay import KINDS, CPUGraphs
from torch import Tensor, nn

from benchmarks.kernels import kernels_of_a_search, kernels_of_a_word
from captioner.data.vocabulary import Vocabulary
from captioner.errors import CheckpointError
from captioner.generation import Hypothesis, SearchOptions, fixed_shapes, search
from captioner.models.build import build_model
from captioner.models.decoders.base import Decoder
from captioner.runtime.cuda_graphs import GraphCache
from captioner.types import AttentionOutput, Grid, hard_attention_mode

OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"beam_size": 1},
    "beam": {"beam_size": 5},
    "bound": {"beam_size": 5, "stop": "bound", "length_penalty": 1.0},
    "lengths": {"beam_size": 3, "min_words": 4, "length_penalty": -0.5},
    "no repeats": {
        "beam_size": 3,
        "no_repeat_ngram": 2,
        "no_repeat_around": ((), (4,), (5, 6)),
        "repeatable": (4, 6, 8),
    },
}
MAX_WORDS = 9


class EachAlone:
    """A decoder that computes each hypothesis alone, so that no sum depends on the batch's size."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    def prepare(self, grid: Grid) -> Any:
        return Memories([self.decoder.prepare(grid.select([i])) for i in range(len(grid.features))])

    def start(self, memory: Memories, beams: int = 1) -> list[list[Any]]:
        return [[self.decoder.start(each)] * beams for each in memory.each]

    def step(
        self, tokens: Tensor, state: list[list[Any]], memory: Memories
    ) -> tuple[Tensor, AttentionOutput, Any]:
        found = [
            [self.decoder.step(t.view(1, 1), s, m) for t, s in zip(row, states, strict=True)]
            for row, states, m in zip(tokens, state, memory.each, strict=True)
        ]

        def joined(values: list[list[Any]]) -> Any:
            if values[0][0] is None:
                return None
            return torch.cat([torch.cat(row, dim=1) for row in values])

        attended = AttentionOutput(
            *(
                joined([[getattr(one[1], name) for one in row] for row in found])
                for name in ("context", "weights", "entropy", "log_prob", "beta", "cells", "heads")
            )
        )
        logits = joined([[one[0] for one in row] for row in found])
        return logits, attended, [[one[2] for one in row] for row in found]

    def reorder(self, state: list[list[Any]], images: Tensor, beams: Tensor) -> list[list[Any]]:
        return [
            [state[image][beam] for beam in row]
            for image, row in zip(images.tolist(), beams.tolist(), strict=True)
        ]


class Memories:
    def __init__(self, each: list[Any]) -> None:
        self.each = each

    def select(self, index: Tensor) -> Memories:
        return Memories([self.each[image] for image in index.tolist()])


def loud(kind: str, end: float = 2.0) -> tuple[Decoder, Grid]:
    """A decoder of random weights, so large that words and maps differ, and grids of 4 images."""
    recipe = tiny.recipe(Path(), Path(), **KINDS[kind])
    torch.manual_seed(3)
    model = build_model(recipe, len(Vocabulary(tiny.WORDS)), pretrained=False).eval()
    decoder = model.decoder
    with torch.no_grad():
        for name, parameter in sorted(decoder.named_parameters()):
            if "norm" not in name:
                nn.init.normal_(parameter, std=0.6)
        decoder.vocabulary.bias[Vocabulary.end] += end
        size = (recipe.preprocess.height_px, recipe.preprocess.width_px)
        grid = model.encoder(torch.randn(1, 3, *size))
    more = torch.randn(4, *grid.features.shape[1:])
    local = None if grid.local is None else more.flip(0)
    return decoder, Grid(more, grid.height, grid.width, local)


def assert_same_bits(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert [h.tokens for h in ours] == [h.tokens for h in theirs]
        for one, other in zip(ours, theirs, strict=True):
            for name, value in vars(other).items():
                np.testing.assert_array_equal(getattr(one, name), value, err_msg=name)


def fast(kind: str, options: str) -> Any:
    slow = options != ("beam" if kind == "hard transformer" else "bound") and kind != "soft"
    return pytest.param(kind, options, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(("kind", "options"), [fast(k, o) for k in KINDS for o in OPTIONS])
def test_fixed_shapes_give_the_same_hypotheses_to_the_bit(kind: str, options: str) -> None:
    decoder, grid = loud(kind)
    chosen = SearchOptions(max_words=MAX_WORDS, num_captions=9, **OPTIONS[options])
    alone = EachAlone(decoder)
    expected = search(alone, grid, chosen)
    assert_same_bits(search(alone, grid, chosen, GraphCache(record=False)), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_replayed_graphs_give_the_hypotheses_of_the_same_shapes(kind: str, monkeypatch) -> None:
    """Also of batches that fill a shape in part, end early, or sample otherwise, and once others are forgotten."""
    decoder, grid = loud(kind, end=1.0)
    chosen = OPTIONS["bound" if kind == "soft" else "no repeats"]
    options = SearchOptions(max_words=MAX_WORDS, num_captions=9, **chosen)
    graphs = CPUGraphs()
    short = grid.select(torch.full((4,), 1))
    for each in (short, grid, grid.select(slice(3)), short, grid):
        expected = search(decoder, each, options, GraphCache(record=False))
        assert_same_bits(search(decoder, each, options, graphs), expected)
    assert sum(graph.replays for graph, _ in graphs.graphs.values()) >= 4
    monkeypatch.setattr(fixed_shapes, "MOST_SEARCHES", 1)
    with hard_attention_mode("expectation"):
        expected = search(decoder, grid, options, GraphCache(record=False))
        for _ in range(3):
            assert_same_bits(search(decoder, grid, options, graphs), expected)
    assert len({key[0] for key in graphs.called}) == 1, "the other searches were forgotten"


def test_sampled_cells_are_drawn_in_a_graph_as_without() -> None:
    decoder, grid = loud("hard")
    found = []
    for graphs in (GraphCache(record=False), CPUGraphs()):
        torch.manual_seed(1)
        with hard_attention_mode("sample"):
            seeds = range(4)  # each of another request: in the same graphs
            found.append([search(decoder, grid, SearchOptions(seed=s), graphs) for s in seeds])
    assert any(graph.replays > 1 for graph, _ in graphs.graphs.values())
    for one, other in zip(*found, strict=True):
        assert_same_bits(one, other)
    assert [h.cells.tolist() for h, *_ in found[0][0]] != [
        h.cells.tolist() for h, *_ in found[0][1]
    ]


@pytest.mark.parametrize("max_words", [2, 9])
def test_output_that_is_not_a_number_is_seen_at_the_next_check(max_words: int) -> None:
    decoder, grid = loud("soft")
    options, graphs = SearchOptions(max_words=max_words), CPUGraphs()
    for _ in range(3):
        search(decoder, grid, options, graphs)
    with torch.no_grad():
        decoder.vocabulary.bias[7] = torch.nan
    with pytest.raises(CheckpointError, match="not a number"):
        search(decoder, grid, options, graphs)


@pytest.mark.parametrize(("select", "most"), [("soft", 88), ("hard", 92)])
def test_a_search_starts_no_more_kernels_than_before(
    select: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU computes them faster than Python starts them; `python -m benchmarks.kernels`."""
    for name, count in (("CAPTIONS", 4), ("WORDS", 4)):  # 32 images and 20 words take as many
        monkeypatch.setattr(f"benchmarks.kernels.{name}", count)
    assert kernels_of_a_word(select, "padded") <= most
    assert kernels_of_a_search(select, "graphs") <= 26
