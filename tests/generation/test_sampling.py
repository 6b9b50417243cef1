"""Sampled captions: which words can be drawn, and how often each is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_search import END, Reader, random_decoder, random_grid

from captioner.generation import SearchOptions, force_decode, sample, truncate
from captioner.generation.sampling import exponential


def test_the_likeliest_words_are_kept() -> None:
    logits = torch.log(torch.tensor([[0.1, 0.4, 0.05, 0.3, 0.15], [0.2, 0.2, 0.2, 0.2, 0.2]]))
    for top_p, expected in ((0.01, [1]), (0.39, [1]), (0.5, [1, 3]), (0.75, [1, 3, 4]), (1, None)):
        kept = truncate(logits, top_p)[0].isfinite().nonzero().flatten().tolist()
        assert kept == (expected or [0, 1, 2, 3, 4]), top_p
    assert truncate(logits, 0.39)[1].isfinite().sum() == 2


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_first_words_are_drawn_as_often_as_they_are_likely(temperature: float) -> None:
    decoder, grid = random_decoder(0, words=4), random_grid(1)
    generator = torch.Generator().manual_seed(0)
    options = SearchOptions(num_captions=1000, max_words=1, temperature=temperature)
    tokens, _ = sample(decoder, grid.select([0] * 20), options, generator=generator)
    log_probs = np.array(Reader(decoder, grid)(()))[4:]
    expected = np.exp(log_probs / temperature) / np.exp(log_probs / temperature).sum()
    drawn = np.bincount(tokens.flatten().numpy() - 4, minlength=4) / 20000
    np.testing.assert_allclose(drawn, expected, atol=0.012)


@pytest.mark.parametrize("temperature", [1e-3, 1e-38, 1e-300])
def test_a_temperature_near_zero_is_greedy(temperature: float) -> None:
    """Not captions without words, where the logits have become infinite."""
    decoder, grid = random_decoder(3), random_grid(4)
    options = SearchOptions(num_captions=2, max_words=8, temperature=temperature)
    greedy, _ = sample(decoder, grid, options, draw=lambda shares, _: shares.argmax(-1))
    drawn, _ = sample(decoder, grid, options)
    assert torch.equal(drawn, greedy)
    assert (drawn > END).any()


def test_captions_of_several_lengths_are_scored_as_each_alone() -> None:
    decoder, grid = random_decoder(3, gate="vector"), random_grid(2)
    captions = [[[4], [5, 6, 7]], [[8, 9], []]]
    found = force_decode(decoder, grid, captions)
    for image, texts in enumerate(captions):
        for text, together in zip(texts, found[image], strict=True):
            ((alone,),) = force_decode(decoder, grid.select([image]), [[text]])
            assert together.tokens == text
            assert together.maps.shape == (len(text), 6)
            for name in ("log_probs", "maps", "beta", "end_log_prob", "score"):
                values = getattr(together, name), getattr(alone, name)
                np.testing.assert_allclose(*values, atol=1e-5, err_msg=name)
    assert END not in found[0][0].tokens


def test_no_number_of_the_exponential_distribution_is_zero() -> None:
    """A share divided by zero would win over all others, a share of zero be no number."""
    like = np.empty((1 << 20,), dtype=np.float32)
    assert (np.random.default_rng(2).standard_exponential(like.shape, np.float32) == 0).any()
    drawn = exponential(like, np.random.default_rng(2))
    assert drawn.dtype == np.float32
    assert drawn.min() > 1e-9  # of a million; one much smaller would be as bad as zero
    assert (drawn.mean(), drawn.var()) == pytest.approx((1, 1), abs=0.01)
