"""The results file and the statistics of captions."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest

from captioner.data.captioned import CaptionedImage
from captioner.evaluation.metrics import Scores, score_captions
from captioner.evaluation.results import match_captions, read_results, results_of, write_json

METRICS = {"Bleu_1": 0.5, "METEOR": None}
CAPTIONS = {7: "a dog", 3: 'un café "noir" 犬'}
SIGNATURE = {"tokenizer": "python (nltk)", "beam_size": 5}
SCORES = Scores(METRICS, per_image={"CIDEr": {7: 0.25, 3: 1.5}}, counts={}, signature={})


def test_results_have_the_promised_keys(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "results.json"
    write_json(path, results_of(SCORES, CAPTIONS, signature=SIGNATURE))
    assert json.loads(path.read_text()) == {
        "metrics": {"Bleu_1": 0.5, "METEOR": None},
        "num_images": 2,
        "captions": [
            {"image_id": 7, "caption": "a dog"},
            {"image_id": 3, "caption": 'un café "noir" 犬'},
        ],
        "signature": {"tokenizer": "python (nltk)", "beam_size": 5},
        "images": [
            {"image_id": 7, "scores": {"CIDEr": 0.25}, "counts": {}},
            {"image_id": 3, "scores": {"CIDEr": 1.5}, "counts": {}},
        ],
    }
    assert [entry.name for entry in path.parent.iterdir()] == ["results.json"]


def test_scores_of_each_image_come_back_and_give_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    captions = {7: "a dog runs in the park", "x": "two men sit on a bench", 3: ""}
    references = {7: ["a dog runs in a park"], "x": ["men sit on a bench"], 3: ["a red ball"]}
    scores = score_captions(captions, references, java="no-such-java")
    write_json(path, results_of(scores, captions, signature=scores.signature))
    signature, images = read_results(path)
    assert signature == scores.signature
    assert images.image_ids == [7, "x", 3]
    whole = {name: float(value) for name, value in images.corpus(np.ones(3)).items()}
    computed = {name: value for name, value in scores.metrics.items() if value is not None}
    assert whole == pytest.approx(computed)


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


def test_the_captions_are_results_that_pycocotools_loads(tmp_path: Path) -> None:
    from pycocotools.coco import COCO

    path = tmp_path / "results.json"
    write_json(path, results_of(SCORES, CAPTIONS, signature=SIGNATURE))
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {"images": [{"id": 7}, {"id": 3}], "annotations": []}
        coco.createIndex()
        loaded = coco.loadRes(json.loads(path.read_text())["captions"])
    assert [loaded.imgToAnns[key][0]["caption"] for key in CAPTIONS] == list(CAPTIONS.values())
