"""Statistics of captions, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from captioner.evaluation.statistics import corpus_statistics


def test_statistics_count_words_endings_and_repetitions() -> None:
    captions = [
        "A dog runs.",
        "a dog runs",
        "Two dogs\nrun in the snow !",
        "",
        "in in the sun in the",
    ]
    found = corpus_statistics(captions, ["A dog runs", "the man is gone"])
    assert found == {
        "num_captions": 5,
        "distinct_ratio": 4 / 5,
        "novel_ratio": 3 / 5,
        "vocabulary_used": 9 + 1,  # a dog runs two dogs run in the snow, sun
        "mean_length_words": (3 + 3 + 6 + 0 + 6) / 5,
        "sd_length_words": pytest.approx(np.std([3, 3, 6, 0, 6])),
        "bad_ending_rate": 1 / 5,
        "repeated_1_gram_rate": 1 / 5,  # in in
        "repeated_2_gram_rate": 1 / 5,  # in the
        "repeated_3_gram_rate": 0.0,
    }
    assert corpus_statistics(captions)["novel_ratio"] is None
    assert set(corpus_statistics([], []).values()) == {0}
