"""Statistics of captions and of people in them, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from captioner.evaluation.statistics import bias_counts, corpus_statistics


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


REFERENCES = {
    "agree": ["A man in a red shirt.", "A guy jumps", "a person jumps"],
    "disagree": ["a man", "a woman", "a man sits"],
    "once": ["a woman", "a person", "people"],
    "girl": ["A girl in a pink dress", "the little girl wears a pink and white dress"],
    "only one": ["a boy wearing blue"],
}


def counted(**captions: str) -> dict[str, dict[str, dict[str, int]]]:
    return bias_counts({key.replace("_", " "): text for key, text in captions.items()}, REFERENCES)


def test_only_references_that_agree_count() -> None:
    counts = counted(agree="a man", disagree="a man", once="a woman")
    assert counts["gender"] == {"man": {"photos": 1, "right": 1, "wrong": 0, "silent": 0}}


def test_right_wrong_and_silent() -> None:
    assert counted(girl="a boy runs")["gender"]["woman"]["wrong"] == 1
    assert counted(girl="a boy runs")["age"]["child"]["right"] == 1
    assert counted(girl="a woman runs")["age"]["child"]["wrong"] == 1
    assert counted(girl="a dog runs")["gender"]["woman"]["silent"] == 1
    assert counted(girl="a man and a woman")["gender"]["woman"]["silent"] == 1
    clothes = counted(girl="a girl in a white dress")["colour of clothes"]
    assert clothes == {"pink": {"photos": 1, "right": 0, "wrong": 0, "silent": 1}}
    assert counted(girl="a girl in a red dress")["colour of clothes"]["pink"]["wrong"] == 1
    assert counted(only_one="a boy in a blue shirt")["colour of clothes"]["blue"]["right"] == 1
