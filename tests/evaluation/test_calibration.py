"""The calibrator: what it is fitted to, what is reported of it, and its features."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

from captioner import Captioner
from captioner.cli import calibrate
from captioner.data.captioned import CaptionedImage
from captioner.data.subwords import SubwordTokenizer
from captioner.data.vocabulary import Vocabulary
from captioner.errors import CheckpointError, DataError
from captioner.evaluation.calibration import (
    CalibrationData,
    area_under_curve,
    calibration_report,
    caption_scores,
    collect,
    fit,
)
from captioner.generation import Hypothesis
from captioner.generation.confidence import (
    EARLIER_FEATURES,
    FEATURES,
    Calibrator,
    ImageStatistics,
    confidence_features,
    similarity,
)
from captioner.types import Grid


def drawn(count: int, seed: int, *, weight: float = 2.0) -> CalibrationData:
    """Captions that are right with a probability that their first feature gives."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(count, len(FEATURES))) * 3 + 5
    truth = 1 / (1 + np.exp(-weight * (features[:, 0] - 5) / 3))
    right = generator.random(count) < truth
    features[generator.random(count) < 0.1, 1] = np.nan
    return CalibrationData(f"data {seed}", features, right.astype(float))


def test_the_fit_finds_the_probabilities_that_captions_were_drawn_from() -> None:
    data = [drawn(1500, 0), drawn(1500, 1)]
    calibrator, report = fit(data)
    fresh = drawn(4000, 2)
    predicted = calibrator.probabilities(fresh.features)
    truth = 1 / (1 + np.exp(-2 * (fresh.features[:, 0] - 5) / 3))
    assert np.abs(predicted - truth).mean() < 0.03
    assert set(report) == {"all", "data 0", "data 1"}
    assert report["all"]["num_images"] == 3000
    assert report["all"]["ece"] < 0.05
    assert report["all"]["auc"] > 0.85
    assert 0.05 < report["all"]["unsure_right"] <= 0.1
    risk = [row["right"] for row in report["all"]["risk_coverage"]]
    assert risk[0] > 0.9 > risk[-1]
    assert calibrator.fitted_on == "data 0 (1500 photos), data 1 (1500 photos)"


def test_reported_confidence_was_predicted_without_the_image() -> None:
    generator = np.random.default_rng(0)
    noise = CalibrationData(
        "noise",
        generator.normal(size=(40, len(FEATURES))),
        (generator.random(40) < 0.5).astype(float),
    )
    calibrator, report = fit([noise])
    right = noise.scores > 0
    seen = area_under_curve(calibrator.probabilities(noise.features), right)
    assert seen is not None
    assert seen > report["all"]["auc"] + 0.05


def test_a_caption_is_right_from_the_threshold_on() -> None:
    data = drawn(300, 0)
    at_threshold = CalibrationData(data.name, data.features, 0.5 * data.scores)
    assert fit([at_threshold], right_from=0.5)[0] == fit([data], right_from=0.5)[0]


def test_features_without_a_value_count_as_the_mean() -> None:
    calibrator, _ = fit([drawn(300, 0)])
    features = np.array([calibrator.mean] * 2)
    features[1, 1] = np.nan
    first, second = calibrator.probabilities(features)
    assert first == pytest.approx(second)


def test_the_area_under_the_curve_is_the_share_of_pairs() -> None:
    generator = np.random.default_rng(0)
    confidence, right = generator.integers(0, 6, 50) / 5, generator.random(50) < 0.4
    pairs = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for a in confidence[right]
        for b in confidence[~right]
    ]
    assert area_under_curve(confidence, right) == pytest.approx(np.mean(pairs))
    assert area_under_curve(confidence, np.ones(50, bool)) is None


def test_the_report_by_hand() -> None:
    confidence = np.array([0.1] * 10 + [0.9] * 10)
    right = np.array([True] * 2 + [False] * 8 + [True] * 8 + [False] * 2)
    found = calibration_report(confidence, right, threshold=0.5)
    assert found["right"] == 0.5
    # eleven captions: two in the first of ten bins
    uneven = calibration_report(np.arange(11) / 10, np.arange(11) > 1, threshold=0.5)
    assert uneven["ece"] == pytest.approx((2 * 0.05 + sum(1 - n / 10 for n in range(2, 11))) / 11)
    assert len(found["bins"]) == 10
    assert found["unsure"] == 0.5
    assert found["unsure_right"] == 0.2
    assert found["risk_coverage"][-1] == {"coverage": 1.0, "right": 0.5}
    assert found["risk_coverage"][4]["right"] == 0.8
    expected = sum(abs(b["confidence"] - b["right"]) * b["num_images"] for b in found["bins"]) / 20
    assert found["ece"] == pytest.approx(expected)


def test_too_little_to_learn_from_is_one_sentence() -> None:
    with pytest.raises(DataError, match="needs at least"):
        fit([drawn(10, 0)])
    data = drawn(100, 0)
    with pytest.raises(DataError, match="100 of 100 captions are right"):
        fit([CalibrationData("all right", data.features, np.ones(100))])


def test_scores_use_the_document_frequencies_of_the_training_captions() -> None:
    captions = ["a red disc", "a dog"]
    references = [["a red disc on a field", "a disc"], ["a dog runs"]]
    common = [["a red disc"], ["a red disc"], ["a dog"], ["the sea"]]
    rare = [["the sea"], ["the sky"], ["a tree"], ["a dog"]]
    one, other = (caption_scores(captions, references, training) for training in (common, rare))
    assert one.shape == (2,)
    assert (one >= 0).all()
    assert abs(one - other).max() > 1e-3


def test_a_caption_is_scored_as_the_text_that_users_read(drawn_photos: Path) -> None:
    model, config, vocabulary = tiny.model()
    subwords = Vocabulary([f"▁{word}" for word in vocabulary.words], SubwordTokenizer())
    captioner = Captioner(model, config, subwords)
    photos = sorted(drawn_photos.glob("*.jpg"))[:4]
    texts = [caption.text for caption in captioner.caption_batch(photos)]
    images = [
        CaptionedImage(photo, (text,), number)
        for number, (photo, text) in enumerate(zip(photos, texts, strict=True))
    ]
    assert "▁" not in "".join(texts)
    assert collect(captioner, "drawn", images).scores.max() == pytest.approx(10)


def test_collected_scores_use_the_document_frequencies_of_the_training_captions(
    tiny_model: Path, drawn_photos: Path
) -> None:
    captioner = Captioner.from_pretrained(tiny_model, device="cpu")
    photos = sorted(drawn_photos.glob("*.jpg"))[:3]
    texts = [caption.text for caption in captioner.caption_batch(photos)]
    references = [(f"{text} here",) for text in texts]
    images = [CaptionedImage(*each) for each in zip(photos, references, range(3), strict=True)]
    training = [replace(image, captions=(texts[0],)) for image in images]
    expected = caption_scores(texts, references, [image.captions for image in training])
    assert expected.tolist() != caption_scores(texts, references).tolist()
    assert collect(captioner, "drawn", images, training).scores.tolist() == expected.tolist()


def hypothesis(tokens: list[int], log_probs: list[float], end: float | None) -> Hypothesis:
    maps = np.full((len(tokens), 4), 0.25)
    return Hypothesis(tokens, np.array(log_probs), end, maps, None, None, 0.0)


IMAGE = ImageStatistics(np.array([1.0, 2.0, 3.0, 6.0]), 2.5)


def test_features_by_hand() -> None:
    best = hypothesis([5, 23], [-1.0, -3.0], -5.0)
    other = hypothesis([5, 7], [-2.0, -5.0], None)
    worst = hypothesis([8, 9], [-6.0, -6.0], None)
    assert confidence_features([best, worst, other], IMAGE) == pytest.approx(
        {
            "mean_log_prob": -3.0,
            "rare_log_prob": -3.0,  # token 5 is common, and 23 the 24th of the vocabulary
            "rarity": np.log(24 / 12) / 2,
            "attended_norm": np.log(3.0),
            "image_norm": 2.5,
            "margin": 0.5,
            "least_log_prob": -3.0,
            "length": 2,
            "entropy": 1.0,
            "agreement": 0.5 / 4 / 2,
        }
    )
    assert confidence_features([best, other], IMAGE, 1)["margin"] == pytest.approx(-0.5)
    alone = confidence_features([best], IMAGE)
    assert np.isnan(alone["margin"])
    assert np.isnan(alone["agreement"])
    assert similarity([4, 5, 6, 7, 8], [4, 5, 6, 7, 8]) == pytest.approx(1)


def test_a_calibrator_of_an_earlier_version_still_reads_its_own_features() -> None:
    earlier = ("mean_log_prob", *EARLIER_FEATURES)
    content = {
        "features": list(earlier),
        "mean": [0.0] * 6,
        "scale": [1.0] * 6,
        "weights": [1.0, 0.0, 0.0, 0.5, 0.0, 0.0],
        "bias": 0.25,
        "threshold": 0.3,
        "right_from": 0.5,
    }
    calibrator = Calibrator.from_json(json.dumps(content).encode())
    best = hypothesis([5, 23], [-1.0, -3.0], -2.0)
    expected = 1 / (1 + np.exp(-(-2.0 + 0.5 * 2 + 0.25)))
    assert calibrator.confidence([best], IMAGE) == pytest.approx(expected)


def test_image_statistics_are_norms_of_the_annotation_vectors() -> None:
    features = torch.tensor([[[3.0, 4.0], [0.0, 1.0]], [[0.0, 0.0], [2.0, 0.0]]])
    first, second = ImageStatistics.of(Grid(features, 1, 2))
    assert first.cell_norms.tolist() == [5.0, 1.0]
    assert first.mean_norm == pytest.approx(np.hypot(1.5, 2.5))
    assert second.mean_norm == pytest.approx(1.0)


def test_a_calibrator_survives_its_file_and_others_are_refused() -> None:
    calibrator, _ = fit([drawn(300, 0)])
    assert Calibrator.from_json(calibrator.to_json()) == calibrator
    content = json.loads(calibrator.to_json())
    for changed in (
        {"features": ["other"]},
        {"weights": [1.0]},
        {"bias": "x"},
        {"scale": [0.0] * len(FEATURES)},
        {"bias": float("nan")},
        {"weights": [1e308] * len(FEATURES)},
        {"scale": [1e-320] * len(FEATURES)},
        {"bias": 10**400},
        {"right_from": float("inf")},
    ):
        with pytest.raises(CheckpointError, match="calibrator"):
            Calibrator.from_json(json.dumps(content | changed).encode())
    for data in (b"", b"[]", b"\xff", b"3", b"[" * 100_000):
        with pytest.raises(CheckpointError, match="calibrator"):
            Calibrator.from_json(data)


def test_data_sets_are_named_by_the_ends_of_their_paths_and_apart() -> None:
    roots = ["/a/flickr8k", "/b/everyday/captions.csv", "/c/flickr8k"]
    assert calibrate._names(roots, ["val", "val", "val"]) == [
        "flickr8k val (1)",
        "everyday/captions.csv val",
        "flickr8k val (2)",
    ]


@pytest.mark.parametrize("value", ["nan", "-1", "11"])
def test_a_threshold_that_no_caption_can_have_is_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], value: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        calibrate.main(["soft", "--format", "table", "--root", "x", "--right-from", value])
    assert "--right-from" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_refused_before_the_work(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    report = tmp_path / "file" / "report.json"
    options = ("--format", "table", "--root", str(tiny.draw_table(tmp_path / "photos")))
    assert calibrate.main([str(tiny_model), *options, "--output", str(report)]) == 2
    assert f"{report} cannot be written" in capsys.readouterr().err


def test_photos_that_are_missing_are_named(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tiny.draw_table(tmp_path / "photos")
    with (root / "captions.csv").open("a", encoding="utf-8") as file:
        file.write("gone.jpg,a disc,val\n")
    options = ("--format", "table", "--root", str(root), "--device", "cpu")
    assert calibrate.main([str(tiny_model), *options]) == 2, "too few to fit a calibrator"
    assert f"1 of 4 photos are missing: {root / 'gone.jpg'}" in capsys.readouterr().err
