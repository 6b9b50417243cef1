"""The results file and the statistics of captions."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from captioner.data.splits import CaptionedImage
from captioner.evaluation.evaluate import score_texts
from captioner.evaluation.results import match_captions, read_results, write_json

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
    found = read_results(path)
    assert found is not None
    signature, images = found
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


def test_the_captions_are_results_that_pycocotools_loads(results: dict[str, Any]) -> None:
    from pycocotools.coco import COCO

    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {"images": [{"id": key} for key in CAPTIONS], "annotations": []}
        coco.createIndex()
        loaded = coco.loadRes(json.loads(json.dumps(results["captions"])))
    assert [loaded.imgToAnns[key][0]["caption"] for key in CAPTIONS] == list(CAPTIONS.values())
