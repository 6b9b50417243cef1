"""The calibrator: what it is fitted to, what is reported of it, and its features."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from captioner import Captioner
from captioner.checkpoint_writer import add_files
from captioner.data.splits import CaptionedImage
from captioner.data.tokenizers import SubwordTokenizer
from captioner.data.vocabulary import Vocabulary
from captioner.errors import CheckpointError, DataError
from captioner.evaluation import calibration, matching
from captioner.evaluation.calibration import (
    CalibrationData,
    area_under_curve,
    calibration_report,
    caption_scores,
    collect,
    fit,
    matcher_for,
)
from captioner.generation import Hypothesis, search
from captioner.generation.arrays import to_numpy
from captioner.generation.confidence import (
    EARLIER_FEATURES,
    FEATURES,
    MATCH,
    Calibrator,
    confidence_features,
)
from captioner.generation.earlier_features import earlier_features, similarity
from captioner.generation.scoring import force_decode


def drawn(count: int, seed: int, *, weight: float = 2.0) -> CalibrationData:
    """Captions that are right with a probability that their first feature gives."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(count, len(FEATURES))) * 3 + 5
    truth = 1 / (1 + np.exp(-weight * (features[:, 0] - 5) / 3))
    right = generator.random(count) < truth
    return CalibrationData(f"data {seed}", features, right.astype(float))


def test_the_fit_finds_the_probabilities_that_captions_were_drawn_from() -> None:
    calibrator, report = fit([drawn(1500, 0), drawn(1500, 1)])
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
    assert len(found["bins"]) == 10
    assert (found["unsure"], found["unsure_right"]) == (0.5, 0.2)
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
    with pytest.raises(DataError, match="no better than chance"):
        fit([CalibrationData("any", data.features, np.random.default_rng(1).integers(0, 2, 100))])


def test_a_caption_is_scored_as_the_text_that_users_read(drawn_photos: Path) -> None:
    model, config, vocabulary = tiny.model()
    subwords = Vocabulary([f"▁{word}" for word in vocabulary.words], SubwordTokenizer())
    captioner = Captioner(model, config, subwords)
    photos = sorted(drawn_photos.glob("*.jpg"))[:4]
    texts = [caption.text for caption in captioner.caption_batch(photos)]
    images = [CaptionedImage(p, (text,), text) for p, text in zip(photos, texts, strict=True)]
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


IMAGE = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 6.0]])


def test_features_by_hand() -> None:
    best = hypothesis([5, 23], [-1.0, -3.0], -5.0)
    other = hypothesis([5, 7], [-2.0, -5.0], None)
    worst = hypothesis([8, 9], [-6.0, -6.0], None)
    assert confidence_features(best, IMAGE) | earlier_features(
        [best, worst, other], 0
    ) == pytest.approx(
        {
            "mean_log_prob": -3.0,
            "rare_log_prob": -3.0,  # token 5 is common, and 23 the 24th of the vocabulary
            "rarity": np.log(24 / 12) / 2,
            "attended_norm": np.log(3.0),
            "image_norm": np.hypot(1.0, 2.0),
            "margin": 0.5,
            "least_log_prob": -3.0,
            "length": 2,
            "entropy": 1.0,
            "agreement": 0.5 / 4 / 2,
        }
    )
    assert earlier_features([best, other], 1)["margin"] == pytest.approx(-0.5)
    alone = earlier_features([best], 0)
    assert np.isnan(alone["margin"])
    assert np.isnan(alone["agreement"])
    assert similarity([4, 5, 6, 7, 8], [4, 5, 6, 7, 8]) == pytest.approx(1)


def test_a_calibrator_of_an_earlier_version_still_reads_its_own_features(tmp_path: Path) -> None:
    earlier = ("mean_log_prob", *EARLIER_FEATURES)
    content = {
        "features": list(earlier),
        "mean": [0.0] * 8,
        "scale": [1.0] * 8,
        "weights": [1.0, 0.0, 0.0, 0.5, 0.0, 0.0, 2.0, 3.0],
        "directions": [[0.1, 0.2]],  # of the attended vector, here the mean
        "direction": [0.3, -0.1],
        "bias": 0.25,
        "threshold": 0.3,
        "right_from": 0.5,
    }
    (tmp_path / "calibrator.json").write_text(json.dumps(content))
    calibrator = Calibrator.from_folder(tmp_path)
    best = hypothesis([5, 23], [-1.0, -3.0], -2.0)
    logit = -2.0 + 0.5 * 2 + 2.0 * (0.1 * 1.0 + 0.2 * 2.0) + 3.0 * 0.1 + 0.25
    expected = 1 / (1 + np.exp(-logit))
    assert calibrator.confidence([best], IMAGE) == pytest.approx(expected)


def test_a_matcher_learns_from_as_many_training_images_as_validation_images_need(
    tiny_model: Path, drawn_photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captioner = Captioner.from_pretrained(tiny_model, device="cpu")
    photos = sorted(drawn_photos.glob("*.jpg"))[:6]
    # The first has fewer than half of the others' references.
    counts = [1, 4, 4, 4, 4, 2]
    texts = (caption.text for caption in captioner.caption_batch(photos))
    images = [CaptionedImage(p, (t,) * n, n) for p, t, n in zip(photos, texts, counts, strict=True)]
    monkeypatch.setattr(calibration, "TRAINING_SHARE", 4)
    assert matcher_for(captioner, images, 100, 0.5) is None, "too few to train one"
    monkeypatch.setattr(calibration, "LEAST_FOR_MATCHER", 4)
    monkeypatch.setattr(matching, "train_matcher", lambda *given, **_: given)
    for validation_images, count in ((1, 4), (100, 5)):
        given: Any = matcher_for(captioner, [*images, *images], validation_images, 0.5)
        grids, captions, offered, log_probs, scores = given
        assert len(grids) == len(offered) == len(log_probs) == len(scores) == count
    assert (scores[:, 0] == calibration.MOST_SCORE).all(), "the best caption is the reference"
    grid, _ = captioner.encode(photos[2:3])
    row = np.abs(grids - to_numpy(grid.features)).sum((1, 2)).argmin()
    texts = [captions[number] for number in offered[row]]
    own = search(captioner.engine.decoder, grid, captioner.options(num_captions=3))[0]
    assert texts[:3] == [tuple(each.tokens) for each in own]
    expected = force_decode(captioner.engine.decoder, grid, [texts])[0]
    for found, each in zip(log_probs[row], expected, strict=True):
        assert found[: len(each.tokens)] == pytest.approx(each.log_probs, abs=1e-4)


def test_a_calibrator_survives_its_files_and_others_are_refused(tmp_path: Path) -> None:
    calibrator = replace(fit([drawn(300, 0)])[0], direction=(0.5, -1.0))
    weights = {n: (*getattr(calibrator, n), 1.0) for n in ("mean", "scale", "weights")}
    calibrator = replace(calibrator, **weights)
    matcher = {"words": np.array([[0.5, 0.25]], np.float32)}
    matching = replace(calibrator, features=(*FEATURES, MATCH), matcher=matcher)
    for each in (calibrator, matching):
        for name, content in each.to_files().items():
            (tmp_path / name).write_bytes(content)
        read = Calibrator.from_folder(tmp_path)
        assert read == each
        assert str(read.matcher) == str(each.matcher)
    (tmp_path / "matcher.safetensors").unlink()
    with pytest.raises(CheckpointError, match="matcher"):
        Calibrator.from_folder(tmp_path)
    (tmp_path / "calibrator.json").write_text("[]")
    with pytest.raises(CheckpointError, match="calibrator"):
        Calibrator.from_folder(tmp_path)


def test_a_calibrator_with_a_matcher_is_used_from_its_folder(
    tiny_model: Path, drawn_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, value in (
        (calibration, "LEAST_FOR_MATCHER", 4),
        (calibration, "FOLDS", 2),
        (calibration, "LEAST_IMAGES", 4),
        (matching, "BATCH", 2),
        (matching, "EPOCHS", 2),
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(calibration, "area_under_curve", lambda *_: 0.9)  # not of chance
    captioner = Captioner.from_pretrained(tiny_model, device="cpu")
    photos = sorted(drawn_photos.glob("*.jpg"))[:14]
    texts = [caption.text for caption in captioner.caption_batch(photos)]
    right = [(text if number % 2 else "no such caption",) for number, text in enumerate(texts)]
    images = [CaptionedImage(*each) for each in zip(photos, right, range(14), strict=True)]
    calibrator, report = calibration.calibrate(captioner, [("a", images[:8])], images[8:])
    assert calibrator.features == (*FEATURES, MATCH)
    assert report["all"]["num_images"] == 8
    captioner.calibrator = calibrator
    shutil.copytree(tiny_model, tmp_path / "model")
    add_files(tmp_path / "model", calibrator.to_files())
    saved = Captioner.from_pretrained(tmp_path / "model", device="cpu")
    one, other = ([x.confidence for x in c.caption_batch(photos)] for c in (captioner, saved))
    assert one == pytest.approx(other, abs=0.01)
    grid, _ = captioner.encode(photos[:1])
    (found,) = search(captioner.engine.decoder, grid, captioner.options())[0]
    given = to_numpy(grid.features)[0], calibrator.matcher
    ways = found, replace(found, tokens=[5]), replace(found, log_probs=found.log_probs - 1)
    assert len({confidence_features(way, *given)[MATCH] for way in ways}) == 3
