"""The tables of an evaluation have every figure that was measured."""

from __future__ import annotations

from typing import Any

from captioner.evaluation.tables import cell_text, result_tables


def made_results() -> dict[str, Any]:
    grounding = {"num_words": 5, "intervals": {"correctness": [0.1, 0.2], "hit": [0.3, 0.4]}}
    for number, key in enumerate(("correctness", "hit")):
        for place, kind in enumerate(("", "_uniform", "_centre", "_others")):
            grounding[key + kind] = 0.501 + number / 10 + place / 100
    return {
        "metrics": {"Bleu_1": 0.611, "CIDEr": None},
        "intervals": {"Bleu_1": (0.5, 0.7)},
        "num_images": 1,
        "statistics": {"num_captions": 1, "novel_ratio": None},
        "signature": {"CIDEr": "not defined: one photo"},
        "calibration": {
            "ece": 0.123,
            "auc": None,
            "right": 0.456,
            "risk_coverage": [{"coverage": n / 10, "right": 0.7 + n / 1000} for n in range(1, 11)],
        },
        "bias": {"gender": {"man": {"photos": 4, "right": 2, "wrong": 1, "silent": 1}}},
        "grounding": {"captions": grounding, "references": {"num_words": 0}},
        "attention": {
            "frozen": {"value": 0.234, "interval": [0.222, 0.245]},
            "deleted_in_grid": {"value": 0.345, "interval": [0.333, 0.356], "control": 0.017},
        },
    }


def test_every_measurement_has_its_table() -> None:
    tables = result_tables(made_results())
    rows = {row[0]: list(map(cell_text, row[1:])) for table in tables for row in table.rows}
    assert rows["Bleu_1"] == ["0.611", "0.500", "0.700"]
    assert rows["CIDEr"] == ["not defined", "", ""]
    assert rows["novel ratio"] == ["not computed"]
    assert rows["area under the curve"] == ["not defined"]
    assert rows["of the surest half"] == ["0.705"]
    assert rows["gender: man"] == ["4", "0.500", "0.250", "0.250"]
    assert rows["pointing game, captions"][-3:] == ["0.611", "0.621", "0.631"]
    assert rows["deleted_in_grid"] == ["0.345", "0.333", "0.356", "0.017"]


def test_what_was_not_measured_has_none() -> None:
    results = made_results()
    for name in ("calibration", "bias", "grounding", "attention"):
        del results[name]
    assert [table.title.split()[0] for table in result_tables(results)] == ["Scores", "Captions"]
