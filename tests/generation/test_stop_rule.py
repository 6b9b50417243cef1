"""The rule that ends a beam search, against all captions of toy models."""

from __future__ import annotations

import functools
from itertools import product

import plain
import pytest
import torch
from test_search import END, START, random_decoder, random_grid

from captioner.generation import Hypothesis, SearchOptions, search
from captioner.models.decoders.lstm import LSTMDecoder
from captioner.types import Grid

WORDS, MAX_WORDS = 3, 6
LogProbs = dict[tuple[int, ...], list[float]]


def log_probs_of_all(decoder: LSTMDecoder, grid: Grid) -> LogProbs:
    """Log-probabilities of the next token after all words, those of a length at a time."""
    memory = decoder.prepare(grid)
    state, tokens = decoder.start(memory), torch.tensor([[START]])
    captions: list[tuple[int, ...]] = [()]
    known: LogProbs = {}
    for _ in range(MAX_WORDS):
        with torch.no_grad():
            logits, _, state = decoder.step(tokens, state, memory)
        rows = map(plain.log_softmax, logits[0].tolist())
        known |= dict(zip(captions, rows, strict=True))
        parents = torch.arange(len(captions)).repeat_interleave(WORDS)
        state = decoder.reorder(state, torch.tensor([0]), parents[None])
        captions = [(*caption, word) for caption in captions for word in range(4, 4 + WORDS)]
        tokens = torch.tensor([[caption[-1] for caption in captions]])
    return known


def best_of_all(known: LogProbs, length_penalty: float) -> tuple[tuple[int, ...], float]:
    """The finished caption of at most MAX_WORDS - 1 words with the highest score."""
    best: tuple[tuple[int, ...], float] = ((), -float("inf"))
    for length in range(1, MAX_WORDS):
        for words in product(range(4, 4 + WORDS), repeat=length):
            total = sum(known[words[:place]][word] for place, word in enumerate(words))
            score = (total + known[words][END]) / (length + 1) ** length_penalty
            best = max(best, (words, score), key=lambda found: found[1])
    return best


@functools.cache  # the next length penalty asks for the same log-probabilities
def toy_model(seed: int) -> tuple[LSTMDecoder, Grid, list[LogProbs]]:
    decoder, grid = random_decoder(seed, words=WORDS, end=2.0), random_grid(3, seed)
    return decoder, grid, [log_probs_of_all(decoder, grid.select([image])) for image in range(3)]


def toy_searches(length_penalty: float, stop: str) -> list[tuple[Hypothesis, tuple[int, ...]]]:
    """The first hypothesis and the best of all captions, for 60 toy models at beam 50."""
    found = []
    for seed in range(20):
        decoder, grid, log_probs = toy_model(seed)
        settings = {"beam_size": 50, "max_words": MAX_WORDS, "length_penalty": length_penalty}
        hypotheses = search(decoder, grid, SearchOptions(**settings, stop=stop))  # type: ignore[arg-type]
        for image, (first, *_) in enumerate(hypotheses):
            best, score = best_of_all(log_probs[image], length_penalty)
            if tuple(first.tokens) == best:
                assert first.score == pytest.approx(score, abs=1e-4)
            found.append((first, best))
    return found


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 0.7, 1.5])
def test_with_the_bound_every_toy_model_is_solved(length_penalty: float) -> None:
    found = toy_searches(length_penalty, "bound")
    assert [tuple(first.tokens) for first, _ in found] == [best for _, best in found]


@pytest.mark.parametrize("beam_size", [1, 2, 5])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
def test_the_bound_never_finds_a_worse_caption(beam_size: int, length_penalty: float) -> None:
    better = 0
    for seed in range(8):
        decoder, grid = random_decoder(seed, end=1.0), random_grid(4, seed)
        settings = {"beam_size": beam_size, "max_words": 8, "length_penalty": length_penalty}
        settings["num_captions"] = beam_size
        first = search(decoder, grid, SearchOptions(**settings))  # type: ignore[arg-type]
        bound = search(decoder, grid, SearchOptions(**settings, stop="bound"))  # type: ignore[arg-type]
        for one, other in zip(first, bound, strict=True):
            if one[0].end_log_prob is not None:
                assert other[0].score >= one[0].score - 1e-6
                better += other[0].score > one[0].score + 1e-6
            scores = [hypothesis.score for hypothesis in other]
            assert scores == sorted(scores, reverse=True)
            assert len({tuple(hypothesis.tokens) for hypothesis in other}) == len(other)
    assert better or length_penalty == 0
