"""Counts of people and clothes in captions, against references that agree."""

from __future__ import annotations

from captioner.evaluation.bias import bias_counts, bias_rows

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


def test_a_group_has_a_row_of_shares() -> None:
    rows = bias_rows(counted(agree="a man in a red shirt", girl="a boy"))
    assert ["gender: man", 1, 1.0, 0.0, 0.0] in rows
    assert ["gender: woman", 1, 0.0, 1.0, 0.0] in rows
