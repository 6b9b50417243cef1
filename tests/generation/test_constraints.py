"""Captions that begin with given words, hold some or avoid some, and that differ."""

from __future__ import annotations

import itertools
from itertools import product

import numpy as np
import pytest
from test_search import END, Reader, photo_of, random_decoder, random_grid

from captioner.generation import Constraints, diverse_search, score, search
from captioner.generation.beam_search import _search_groups


def everything(read: Reader, words: range, longest: int) -> dict[tuple[int, ...], float]:
    """Total log-probability of every caption of up to so many words."""
    found = {}
    for length in range(1, longest + 1):
        for text in product(words, repeat=length):
            log_probs = [read(text[:place])[word] for place, word in enumerate(text)]
            found[text] = sum(log_probs) + read(text)[END]
    return found


@pytest.mark.parametrize("seed", range(3))
def test_a_beam_that_holds_everything_finds_the_best_that_is_allowed(seed: int) -> None:
    decoder, grid = random_decoder(seed, words=3), random_grid(2, seed)
    for image in range(2):
        alone = photo_of(grid, image)
        totals = everything(Reader(decoder, alone), range(4, 7), 3)
        for constraints, allowed in (
            (Constraints(prefix=(5, 4)), lambda text: text[:2] == (5, 4)),
            (Constraints(forbid=((4,),)), lambda text: 4 not in text),
            (
                Constraints(forbid=((4, 5), (6, 6))),
                lambda text: all(pair not in ((4, 5), (6, 6)) for pair in itertools.pairwise(text)),
            ),
            (Constraints(require=(6,)), lambda text: 6 in text),
            (Constraints(require=(6, 4)), lambda text: {4, 6} <= set(text)),
            (
                Constraints(prefix=(5,), forbid=((6,),), require=(4,)),
                lambda text: text[0] == 5 and 6 not in text and 4 in text,
            ),
        ):
            found = search(
                decoder, alone, beam_size=300, max_words=4, stop="bound", constraints=constraints
            )[0]
            expected = max((text for text in totals if allowed(text)), key=lambda t: totals[t])
            assert tuple(found[0].tokens) == expected, constraints
            assert found[0].score == pytest.approx(totals[expected], abs=1e-4)
            assert all(allowed(tuple(h.tokens)) for h in found)


@pytest.mark.parametrize("required", [(4,), (5, 4)])
@pytest.mark.parametrize("seed", range(4))
def test_a_beam_that_holds_everything_finds_each_caption_with_the_words_once(
    seed: int, required: tuple[int, ...]
) -> None:
    decoder, grid = random_decoder(seed, words=3), random_grid(1, seed)
    totals = everything(Reader(decoder, grid), range(4, 7), 3)
    allowed = sorted((t for t in totals if set(required) <= set(t)), key=lambda t: -totals[t])
    constraints = Constraints(require=required)
    (found,) = search(decoder, grid, beam_size=250, max_words=4, constraints=constraints)
    assert [tuple(h.tokens) for h in found if len(h.tokens) < 4] == allowed


@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_a_narrow_beam_holds_the_required_words_in_every_caption(beam_size: int) -> None:
    decoder, grid = random_decoder(3, words=12, end=1.0), random_grid(6)
    settings = {"beam_size": beam_size, "max_words": 12}
    free = search(decoder, grid, **settings)  # type: ignore[arg-type]
    assert not all({7, 9} <= set(h.tokens) for found in free for h in found)
    constraints = Constraints(require=(7, 9))
    for found in search(decoder, grid, **settings, constraints=constraints):  # type: ignore[arg-type]
        assert found
        for hypothesis in found:
            assert {7, 9} <= set(hypothesis.tokens)


def test_captions_that_end_before_they_hold_every_required_word_are_none() -> None:
    decoder, grid = random_decoder(3, words=12), random_grid(2)
    too_many = Constraints(require=(5, 6, 7, 8))
    assert search(decoder, grid, max_words=3, constraints=too_many) == [[], []]
    contradictory = Constraints(require=(7,), forbid=((7,),))
    assert search(decoder, grid, max_words=4, constraints=contradictory) == [[], []]


def test_numbers_of_a_constrained_caption_are_the_model_s_own() -> None:
    decoder, grid = random_decoder(5, words=6, end=1.0), random_grid(2)
    constraints = Constraints(prefix=(6, 8), forbid=((5,),), require=(7,))
    for image, found in enumerate(search(decoder, grid, beam_size=4, constraints=constraints)):
        forced = score(decoder, photo_of(grid, image), found[0].tokens)[0]
        np.testing.assert_allclose(found[0].log_probs, forced.log_probs, atol=2e-5)
        np.testing.assert_allclose(found[0].maps, forced.maps, atol=1e-5)


def test_where_nothing_is_allowed_nothing_is_found() -> None:
    decoder, grid = random_decoder(5, words=2), random_grid(2)
    everything_forbidden = Constraints(forbid=((4,), (5,)))
    assert search(decoder, grid, constraints=everything_forbidden) == [[], []]


# --- diverse beam search --------------------------------------------------------------------------


def test_one_group_without_a_penalty_is_the_plain_search() -> None:
    decoder, grid = random_decoder(4, end=1.0), random_grid(5)
    plain = search(decoder, grid, beam_size=3, max_words=9)
    diverse = diverse_search(decoder, grid, groups=1, diversity=2.0, beam_size=3, max_words=9)
    for one, other in zip(plain, diverse, strict=True):
        assert [h.tokens for h in other] == [one[0].tokens]


def test_a_group_s_best_is_its_likeliest_where_none_has_ended() -> None:
    """The beam of a later group is in the order of its penalised words."""
    decoder, grid = random_decoder(1, words=8, end=-50.0), random_grid(40)
    found = _search_groups(decoder, grid, groups=3, diversity=2.0, beam_size=3, max_words=4)
    assert len(found) == 3
    for group in found:
        for image in group:
            scores = [h.score for h in image]
            assert len(scores) == 3
            assert scores == sorted(scores, reverse=True)


def test_groups_without_a_penalty_agree_and_with_one_they_differ() -> None:
    decoder, grid = random_decoder(4, end=1.0), random_grid(5)
    settings = {"groups": 3, "beam_size": 2, "max_words": 9}
    same = diverse_search(decoder, grid, diversity=0.0, **settings)  # type: ignore[arg-type]
    assert all(len(found) == 1 for found in same)
    different = diverse_search(decoder, grid, diversity=4.0, **settings)  # type: ignore[arg-type]
    assert np.mean([len(found) for found in different]) > 2
    for image, found in enumerate(different):
        scores = [hypothesis.score for hypothesis in found]
        assert scores == sorted(scores, reverse=True)
        assert len({h.tokens[0] for h in found}) > 1
        for hypothesis in found:  # the numbers are the model's own, without the penalty
            forced = score(decoder, photo_of(grid, image), hypothesis.tokens)[0]
            np.testing.assert_allclose(hypothesis.log_probs, forced.log_probs, atol=2e-5)
            if hypothesis.end_log_prob is not None:
                assert hypothesis.score == pytest.approx(forced.score, abs=1e-4)


def test_the_second_group_avoids_the_first_group_s_words_by_the_penalty() -> None:
    decoder, grid = random_decoder(2), random_grid(3)
    for image in range(3):
        alone = photo_of(grid, image)
        first = Reader(decoder, alone)(())
        greedy = max(range(4, 10), key=lambda word: first[word])
        (found,) = diverse_search(decoder, alone, groups=2, diversity=1.5, max_words=1)
        rank = {word: first[word] - 1.5 * (word == greedy) for word in range(4, 10)}
        expected = {greedy, max(rank, key=lambda word: rank[word])}
        assert {hypothesis.tokens[0] for hypothesis in found} == expected
