"""Greedy and beam search against plain loops, brute force and themselves, one photo at a time."""

from __future__ import annotations

import functools
import math
from itertools import product
from typing import Any

import numpy as np
import plain
import pytest
import torch
from torch import Tensor, nn

from captioner.config import AttentionConfig, DecoderConfig
from captioner.errors import CheckpointError
from captioner.generation import Hypothesis, SearchOptions, search
from captioner.models.attention.attention import Attention, Memory
from captioner.models.decoders.base import Decoder
from captioner.models.decoders.lstm import LSTMDecoder
from captioner.types import Geometry, Grid
from captioner.visualization import Caption

PAD, START, END, UNKNOWN = range(4)
ROWS, COLUMNS, D, H = 2, 3, 5, 8
L = ROWS * COLUMNS


def random_decoder(seed: int, words: int = 6, end: float = 0.0, **settings: Any) -> LSTMDecoder:
    """With weights so large that words, maps and gates differ much; `end` favours ending."""
    torch.manual_seed(seed)
    attention = Attention(AttentionConfig(dim=6), query_dim=H, feature_dim=D)
    config = DecoderConfig(hidden_dim=H, embed_dim=7, **settings)
    decoder = LSTMDecoder(
        config, lambda _=None: attention, vocabulary_size=4 + words, feature_dim=D
    )
    with torch.no_grad():
        for _, parameter in sorted(decoder.named_parameters()):  # in whatever order they are made
            nn.init.normal_(parameter, std=0.8)
        decoder.vocabulary.bias[END] += end
    return decoder.eval()


def random_grid(photos: int, seed: int = 0) -> Grid:
    generator = torch.Generator().manual_seed(seed)
    return Grid(torch.randn(photos, L, D, generator=generator), ROWS, COLUMNS)


class Reader:
    """Log-probabilities of the next token after some words, one photo and one caption at a time."""

    def __init__(self, decoder: Decoder, grid: Grid) -> None:
        self.decoder, self.memory = decoder, decoder.prepare(grid)
        self.known: dict[tuple[int, ...], tuple[list[float], Any]] = {}

    def __call__(self, words: tuple[int, ...]) -> list[float]:
        if words not in self.known:
            if words:
                self(words[:-1])
                token, state = words[-1], self.known[words[:-1]][1]
            else:
                token, state = START, self.decoder.start(self.memory)
            with torch.no_grad():
                logits, _, state = self.decoder.step(torch.tensor([[token]]), state, self.memory)
            self.known[words] = (plain.log_softmax(logits[0, 0].tolist()), state)
        return self.known[words][0]


# words, rank, log-probability of ending there (None: cut off)
Found = tuple[tuple[int, ...], float, "float | None"]


def repeats(words: tuple[int, ...], length: int) -> bool:
    """Whether some sequence of so many words comes twice."""
    sequences = [words[start : start + length] for start in range(len(words) - length + 1)]
    return len(set(sequences)) < len(sequences)


def comes_again(words: tuple[int, ...], phrases: tuple[tuple[int, ...], ...]) -> bool:
    """Whether the last word is the one before a phrase that it follows."""
    return any(
        len(words) > len(phrase) + 1
        and words[-1 - len(phrase) : -1] == phrase
        and words[-2 - len(phrase)] == words[-1]
        for phrase in phrases
    )


def plain_beam_search(
    read: Reader,
    beam_size: int,
    max_words: int,
    length_penalty: float = 0.0,
    no_repeat_ngram: int = 0,
    no_repeat_around: tuple[tuple[int, ...], ...] = (),
    min_words: int = 1,
    repeatable: tuple[int, ...] | None = None,
) -> list[Found]:
    """What the docstring of `search` says, for one photo, over Python lists."""
    running: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[Found] = []
    for _ in range(max_words):
        candidates = []
        for total, words in running:
            for token, log_prob in enumerate(read(words)):
                if token in (PAD, START, UNKNOWN) or (token == END and len(words) < min_words):
                    continue
                if no_repeat_ngram and repeats((*words, token), no_repeat_ngram):
                    continue
                if comes_again((*words, token), no_repeat_around):
                    continue
                if repeatable is not None and token in words and token not in repeatable:
                    continue
                if log_prob > -math.inf:
                    candidates.append((total + log_prob, (*words, token)))
        candidates.sort(reverse=True)
        for total, tokens in candidates[:beam_size]:
            if tokens[-1] == END and len(finished) < beam_size:
                words = tokens[:-1]
                rank = total / len(tokens) ** length_penalty
                finished.append((words, rank, read(words)[END]))
        running = [found for found in candidates if found[1][-1] != END][:beam_size]
        if len(finished) == beam_size:
            break
    if finished:
        return sorted(finished, key=lambda found: -found[1])
    return [(words, total / len(words) ** length_penalty, None) for total, words in running]


def assert_same(found: list[Hypothesis], expected: list[Found]) -> None:
    assert [tuple(hypothesis.tokens) for hypothesis in found] == [words for words, _, _ in expected]
    for hypothesis, (_, rank, end) in zip(found, expected, strict=True):
        assert hypothesis.score == pytest.approx(rank, rel=1e-5, abs=1e-5)
        assert hypothesis.end_log_prob == (None if end is None else pytest.approx(end, abs=1e-4))


CASES = [(2, 1.0), (4, 0.0), (14, -2.0), (15, 0.0)]  # seed and bias of the end: see the last test


@functools.cache  # the prefixes that one beam reads are read by the next
def case(seed: int, end: float) -> tuple[LSTMDecoder, Grid, list[Reader]]:
    decoder, grid = random_decoder(seed, end=end, gate="vector"), random_grid(5, seed)
    return decoder, grid, [Reader(decoder, grid.select([photo])) for photo in range(5)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"length_penalty": 0.7},
        {"length_penalty": 1.0},
        *({"no_repeat_ngram": n} for n in (1, 2, 3)),
        {"no_repeat_around": ((), (4,), (5,), (6, 7))},
        {"min_words": 4},
        *({"repeatable": words} for words in ((), (4,), (5, 7))),
    ],
    ids=str,
)
@pytest.mark.parametrize("beam_size", [1, 2, 3, 5])
@pytest.mark.parametrize(("seed", "end"), CASES)
def test_beam_search_is_the_plain_one_for_each_photo(
    seed: int, end: float, beam_size: int, settings: dict[str, Any]
) -> None:
    decoder, grid, readers = case(seed, end)
    common = {"beam_size": beam_size, "max_words": 7, "num_captions": beam_size}
    found = search(decoder, grid, SearchOptions(**common, **settings))
    for hypotheses, read in zip(found, readers, strict=True):
        assert_same(hypotheses, plain_beam_search(read, beam_size, 7, **settings))
    if seed == 2 and settings.keys() & {"no_repeat_ngram", "no_repeat_around", "repeatable"}:
        free = search(decoder, grid, SearchOptions(**common))
        assert [h.tokens for hs in free for h in hs] != [h.tokens for hs in found for h in hs]


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_beam_that_holds_everything_finds_all_captions_in_order(
    seed: int, length_penalty: float
) -> None:
    decoder, grid = random_decoder(seed, words=3), random_grid(1, seed)
    read = Reader(decoder, grid)
    everything: list[Found] = []
    for length in (1, 2, 3):
        for words in product(range(4, 7), repeat=length):
            log_probs = [read(words[:place])[word] for place, word in enumerate(words)]
            end = read(words)[END]
            rank = (sum(log_probs) + end) / (length + 1) ** length_penalty
            everything.append((words, rank, end))
    everything.sort(key=lambda found: -found[1])
    options = {"max_words": 4, "length_penalty": length_penalty}
    found = search(decoder, grid, SearchOptions(beam_size=120, num_captions=120, **options))
    assert_same(found[0], everything)
    few = search(decoder, grid, SearchOptions(beam_size=120, num_captions=3, **options))
    assert_same(few[0], everything[:3])


def test_photos_that_are_done_leave_the_batch_and_the_keys_are_projected_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder, grid = random_decoder(4, end=1.0), random_grid(8)
    rows: list[int] = []
    projections: list[int] = []
    step = decoder.step

    def counted(tokens: Tensor, state: Any, memory: Memory) -> Any:
        assert len(tokens) == len(memory.keys) == len(state.h)
        rows.append(len(tokens))
        return step(tokens, state, memory)

    monkeypatch.setattr(decoder, "step", counted)
    decoder.attention.score.key.register_forward_hook(lambda *_: projections.append(1))
    search(decoder, grid, SearchOptions(beam_size=2, max_words=12))
    assert rows == sorted(rows, reverse=True)
    assert rows[0] == 8
    assert len(set(rows)) >= 3
    assert projections == [1]


@pytest.mark.parametrize("end", [-1e4, -math.inf])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_where_nothing_ends_the_running_captions_come_back(beam_size: int, end: float) -> None:
    decoder, grid = random_decoder(6, end=end), random_grid(3)
    options = SearchOptions(
        beam_size=beam_size, num_captions=beam_size, max_words=7, length_penalty=1.0
    )
    for hypotheses in search(decoder, grid, options):
        assert len(hypotheses) == beam_size
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        for hypothesis in hypotheses:
            assert hypothesis.end_log_prob is None
            assert len(hypothesis.tokens) == len(hypothesis.maps) == len(hypothesis.log_probs) == 7
            assert hypothesis.score == pytest.approx(hypothesis.log_probs.sum() / 7, abs=1e-5)


def test_a_hypothesis_becomes_a_caption_with_row_major_maps() -> None:
    maps, numbers = np.arange(2 * L, dtype=np.float64).reshape(2, L), np.array([-1.0, -2.0])
    hypothesis = Hypothesis([4, 5], numbers, -0.5, maps, None, None, -3.5)
    geometry = Geometry(200, 100, 0, 0, 200, 100)
    caption = Caption.from_hypothesis(hypothesis, ["two", "dogs"], geometry, (ROWS, COLUMNS))
    assert caption.maps.dtype == np.float32
    assert caption.maps[1, 1, 2] == maps[1, COLUMNS + 2]
    assert (caption.text, caption.end_log_prob) == ("two dogs", -0.5)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_output_that_is_not_a_number_is_one_sentence(beam_size: int) -> None:
    decoder, grid = random_decoder(0), random_grid(2)
    assert all(search(decoder, grid, SearchOptions(beam_size=beam_size)))
    with torch.no_grad():
        decoder.vocabulary.bias[5] = math.nan
    with pytest.raises(CheckpointError, match="not a number"):
        search(decoder, grid, SearchOptions(beam_size=beam_size))
