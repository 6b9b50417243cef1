"""The results file and the statistics of captions."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from captioner.data.layouts import DataFiles
from captioner.data.splits import CaptionedImage
from captioner.errors import DataError
from captioner.evaluation.evaluate import score_texts
from captioner.evaluation.results import (
    cell_text,
    match_captions,
    read_captions,
    read_results,
    result_tables,
    write_json,
)

CAPTIONS: dict[int | str, str] = {7: 'a dog runs in the "park" 犬', 3: "", 9: "two men on a bench"}
REFERENCES = {7: ("a dog runs in a park",), 3: ("a red ball",), 9: ("men sit on a bench",)}


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("PATH", "/nowhere")  # no Java, which takes seconds
    images = [CaptionedImage(Path(f"v/{i}.jpg"), texts, i) for i, texts in REFERENCES.items()]
    return score_texts(CAPTIONS, images, signature={"beam_size": 5})


def test_scores_of_each_image_come_back_and_give_the_whole(
    results: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "new" / "folder" / "results.json"
    write_json(path, results)
    assert [entry.name for entry in path.parent.iterdir()] == ["results.json"]
    signature, images = read_results(path)
    assert signature == results["signature"]
    assert signature["beam_size"] == 5
    assert images.image_ids == [7, 3, 9]
    whole = {name: float(value) for name, value in images.corpus(np.ones(3)).items()}
    computed = {name: value for name, value in results["metrics"].items() if value is not None}
    assert len(computed) == 6
    assert whole == pytest.approx(computed)
    assert [image["file_name"] for image in results["images"]] == ["7.jpg", "3.jpg", "9.jpg"]


def image(path: str, image_id: int | str) -> CaptionedImage:
    return CaptionedImage(Path(path), ("a dog",), image_id)


@pytest.mark.parametrize(
    ("names", "images"),
    [
        (["7", "9"], [image("v/x.jpg", 7), image("v/y.jpg", 9)]),
        (["7", "9"], [image("v/COCO_val2014_000000000007.jpg", 0), image("v/000000000009.jpg", 1)]),
        (["a/1.jpg", "b/1.jpg"], [image("r/a/1.jpg", 5), image("r/b/1.jpg", 6)]),
        (["C:\\photos\\x.png", "y"], [image("v/x.jpg", 7), image("v/y.jpg", 9)]),
        # Positions in a table would match, too, but fewer of them.
        (["1.jpg", "2.jpg"], [image("v/1.jpg", 0), image("v/2.jpg", 1)]),
    ],
)
def test_captions_find_their_images_by_id_or_by_name(
    names: list[str], images: list[CaptionedImage]
) -> None:
    found = match_captions(dict(zip(names, ("one", "two"), strict=True)), images)
    assert found == {images[0].image_id: "one", images[1].image_id: "two"}


def test_a_name_of_two_images_means_none() -> None:
    assert match_captions({"1.jpg": "one"}, [image("r/a/1.jpg", 5), image("r/b/1.jpg", 6)]) == {}


@pytest.mark.parametrize("entries", [["a", "b"], [{"caption": "a"}], [{"image_id": 1}]])
def test_captions_of_no_image_are_refused_in_a_sentence(entries: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "captions.json"
    file.write_text(json.dumps({"captions": entries}))
    with pytest.raises(DataError, match=r"captions\.json holds no captions; give COCO results"):
        read_captions(file, "val", DataFiles())


def test_the_captions_are_results_that_pycocotools_loads(results: dict[str, Any]) -> None:
    from pycocotools.coco import COCO

    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {"images": [{"id": key} for key in CAPTIONS], "annotations": []}
        coco.createIndex()
        loaded = coco.loadRes(json.loads(json.dumps(results["captions"])))
    assert [loaded.imgToAnns[key][0]["caption"] for key in CAPTIONS] == list(CAPTIONS.values())


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
