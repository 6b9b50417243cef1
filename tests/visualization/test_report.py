"""The report of an evaluation has every figure that was measured."""

import re
from typing import Any

from captioner.visualization import report_page


def made_results() -> dict[str, Any]:
    grounding = {"num_words": 5, "intervals": {"correctness": [0.1, 0.2], "hit": [0.3, 0.4]}}
    for number, key in enumerate(("correctness", "hit")):
        for place, kind in enumerate(("", "_uniform", "_centre", "_others")):
            grounding[key + kind] = 0.501 + number / 10 + place / 100
    return {
        "metrics": {"CIDEr": 0.611},
        "intervals": {"CIDEr": (0.5, 0.7)},
        "num_images": 1,
        "images": [{"scores": {"CIDEr": 0.611}}],
        "captions": [{"caption": "a dog"}],
        "statistics": {"num_captions": 1},
        "groups": {},
        "signature": {"model": "soft"},
        "calibration": {
            "ece": 0.123,
            "auc": None,
            "right": 0.456,
            "risk_coverage": [{"coverage": n / 10, "right": 0.7 + n / 1000} for n in range(1, 11)],
        },
        "bias": {"gender": {"man": {"photos": 9, "right": 6, "wrong": 1, "silent": 2}}},
        "grounding": {"captions": grounding, "references": {"num_words": 0}},
        "attention": {
            "frozen": {"value": 0.234, "interval": [0.222, 0.245]},
            "deleted_in_grid": {
                "value": 0.345,
                "interval": [0.333, 0.356],
                "control": 0.017,
                "control_interval": [0.01, 0.02],
            },
        },
    }


def test_the_report_has_confidence_people_and_the_controls_of_attention() -> None:
    page = report_page(made_results(), {}, title="a report")

    def row(name: str) -> list[str]:
        found = re.search(rf'<th scope="row">{name}</th>(.*?)</tr>', page)
        assert found is not None, name
        return re.findall(r"<td[^>]*>(.*?)</td>", found[1])

    assert row("captions")[-3:] == ["0.511", "0.521", "0.531"]
    assert row("frozen") == ["0.234", "0.222", "0.245", ""]
    assert row("deleted in grid") == ["0.345", "0.333", "0.356", "0.017"]
    assert row("expected calibration error") == ["0.123"]
    assert row("area under the curve") == ["not defined"]
    assert row("of the surest half") == ["0.705"]
    assert row("gender: man") == ["9", "6", "1", "2"]


def test_a_report_without_those_measurements_has_no_headings_for_them() -> None:
    results = made_results()
    for name in ("calibration", "bias", "grounding", "attention"):
        del results[name]
    page = report_page(results, {}, title="a report")
    assert re.findall("<h2>(.*?)</h2>", page) == [
        *("Scores", "Distributions", "Captions", "How this was computed")
    ]
