"""Statistics of captions and scores by groups, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from captioner.evaluation.intervals import ImageScores
from captioner.evaluation.metrics import python_scores
from captioner.evaluation.statistics import (
    corpus_statistics,
    scores_by_group,
    scores_by_length,
)


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


def test_statistics_of_no_captions_are_zero() -> None:
    assert set(corpus_statistics([], []).values()) == {0}


def scored(candidates: list[str], references: list[list[str]]) -> ImageScores:
    table = python_scores(candidates, references)
    ids = [f"photo {n}" for n in range(len(candidates))]
    return ImageScores.of(
        {name: dict(zip(ids, row.images, strict=True)) for name, row in table.items()},
        {"Bleu_4": dict(zip(ids, table["Bleu_4"].counts or [], strict=True))},
    )


def test_groups_are_scored_as_their_photos_alone() -> None:
    candidates = ["a dog runs fast", "two men sit on a bench", "a red ball", "a dog in the snow"]
    references = [["a dog runs"], ["men sit on a bench"], ["one red ball lies here"], ["dogs"]]
    values = {"photo 0": 1, "photo 1": 5, "photo 2": 2, "photo 3": 40}
    groups = scores_by_group(scored(candidates, references), values, [2, 30, 50])
    assert [(g["from"], g["to"], g["num_images"]) for g in groups] == [
        (None, 2, 1),
        (2, 30, 2),
        (30, 50, 1),
    ]
    alone = python_scores(candidates[1:3], references[1:3])
    for name in ("Bleu_1", "Bleu_2", "ROUGE_L"):
        assert groups[1][name] == pytest.approx(alone[name].corpus), name


def test_thirds_by_length_hold_all_photos() -> None:
    texts = ["a dog " + "runs " * n for n in range(9)]
    groups = scores_by_length(
        scored(texts, [[text] for text in texts]), {f"photo {n}": [t] for n, t in enumerate(texts)}
    )
    assert [group["num_images"] for group in groups] == [3, 3, 3]
    assert groups[0]["from"] is None
    assert groups[-1]["to"] is None
