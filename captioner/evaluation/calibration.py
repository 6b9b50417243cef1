"""Fit the calibrator that gives captions their confidence, and measure how good it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from captioner.data.images import opened
from captioner.errors import DataError, ImageError
from captioner.evaluation.metrics import CiderD, tokenize
from captioner.generation import search
from captioner.generation.arrays import to_numpy
from captioner.generation.confidence import FEATURES, Calibrator, confidence_features
from captioner.log import logger, progress_bar

if TYPE_CHECKING:
    from captioner.captioner import Captioner
    from captioner.data.splits import CaptionedImage

RIGHT_FROM = 0.5
FOLDS = 5
BINS = 10
RIDGE = 1.0  # weight of the squared weights, in captions
# Training images that are captioned too: as many for each validation image, and at most.
TRAINING_SHARE, TRAINING_IMAGES = 4, 4000
DIRECTION_RIDGE = 300.0  # as RIDGE, for the many weights that training images give
MOST_SCORE = 2.0  # no higher CIDEr-D counts: few captions have one
MARKED_RIGHT = 0.1  # share of the right captions that may be marked as unsure
LEAST_IMAGES = 20


@dataclass(frozen=True)
class CalibrationData:
    """Captions of one data set.

    Attributes:
        features: [N, FEATURES + D]: `confidence_features` and the image's mean annotation vector.
        scores: [N], CIDEr-D, from 0 to 10.
    """

    name: str
    features: np.ndarray
    scores: np.ndarray


def caption_scores(
    captions: Sequence[str],
    references: Sequence[Sequence[str]],
    training: Sequence[Sequence[str]] = (),
) -> np.ndarray:
    """Return CIDEr-D [N], from 0 to 10, of each caption against its references.

    Document frequencies are those of the captions of each training image, or of the references.
    """

    def words(texts: Sequence[str]) -> list[list[str]]:
        return [tokenize(text).split() for text in texts]

    scorer = CiderD(list(map(words, references)), list(map(words, training)) or None)
    return scorer.scores(range(len(references)), words(captions))


def collect(
    captioner: Captioner,
    name: str,
    images: Sequence[CaptionedImage],
    training: Sequence[CaptionedImage] = (),
) -> CalibrationData:
    """Caption the images that can be read; return features and scores of the captions.

    Args:
        name: Of the data set, for the report and the model folder.
        training: Images whose captions give CIDEr-D's document frequencies.
    """
    engine = captioner.engine
    rows, texts, references = [], [], []

    def failed(image: CaptionedImage, error: ImageError) -> None:
        bar.update()
        logger.warning(f"{image.path}: left out: {error}")

    with progress_bar(total=len(images), desc=name, unit="photo") as bar:
        for batch in opened(((image, image.path) for image in images), failed, captioner.device):
            grid, _ = captioner.encode([photo for _, photo in batch])
            results = search(engine.decoder, grid, captioner.options(), engine.search_graphs)
            of_images = zip(batch, results, to_numpy(grid.features), strict=True)
            for (image, _), found, vectors in of_images:
                features = confidence_features(found[0], vectors)
                scalars = [features[name] for name in FEATURES]
                rows.append(np.concatenate([scalars, vectors.mean(0)]))
                words = captioner.vocabulary.decode(found[0].tokens)
                texts.append(captioner.vocabulary.tokenizer.join(words))
                references.append(image.captions)
            bar.update(len(batch))
    if not rows:
        raise DataError(f"{name}: none of the {len(images)} photos can be read")
    scores = caption_scores(texts, references, [image.captions for image in training])
    return CalibrationData(name, np.stack(rows), scores)


def collect_training(
    captioner: Captioner, images: Sequence[CaptionedImage], validation_images: int
) -> CalibrationData:
    """Caption some of the training images, as `collect` does: TRAINING_SHARE a validation image.

    Images with fewer than half of the most references are left out: they say little of a caption.
    """
    most = max(len(image.captions) for image in images)
    usable = [image for image in images if len(image.captions) >= most / 2]
    order = np.random.default_rng(0).permutation(len(usable))
    count = min(TRAINING_SHARE * validation_images, TRAINING_IMAGES)
    return collect(captioner, "training", [usable[index] for index in order[:count]], images)


def fit(
    data: Sequence[CalibrationData],
    training: CalibrationData | None = None,
    *,
    right_from: float = RIGHT_FROM,
) -> tuple[Calibrator, dict[str, Any]]:
    """Fit a calibrator on all data sets together.

    Args:
        training: Captions of training images. The model has learned from them, so they do not say
            how many captions are right. But there are many, and they tell for what images captions
            are better: that is one more feature.

    Returns:
        The calibrator, and a `calibration_report` for `all` and each data set. It is cross-fitted:
        every image is predicted by a calibrator that did not see it.

    Raises:
        DataError: Too few captions, all of them right or all wrong, or nothing tells them apart.
    """
    features = np.concatenate([each.features for each in data])
    right = np.concatenate([each.scores for each in data]) >= right_from
    if len(right) < LEAST_IMAGES or min(right.sum(), (~right).sum()) < FOLDS:
        raise DataError(
            f"{int(right.sum())} of {len(right)} captions are right (CIDEr-D at least "
            f"{right_from:g}); a calibrator needs at least {LEAST_IMAGES} captions, and {FOLDS} "
            "right and wrong ones: give more photos that the model has not learned from"
        )
    features, vectors = features[:, : len(FEATURES)], features[:, len(FEATURES) :]
    direction = () if training is None else _direction(training)
    if direction:
        features = np.column_stack([features, vectors @ np.array(direction)])
    empty = Calibrator((), (), (), 0.0, 0.0, right_from, direction=direction)
    folds = np.random.default_rng(0).permutation(len(right)) % FOLDS
    predicted = np.zeros(len(right))
    for fold in range(FOLDS):
        inside = folds != fold
        calibrator = _fit_logistic(empty, features[inside], right[inside])
        predicted[~inside] = calibrator.probabilities(features[~inside])
    if (area := area_under_curve(predicted, right)) is not None and area <= 0.5:
        raise DataError(
            f"{len(right)} captions are too few: confidences fitted on them rank others no better "
            f"than chance (area under the curve {area:.2f}); give more photos"
        )
    calibrator = replace(
        _fit_logistic(empty, features, right),
        threshold=float(np.quantile(predicted[right], MARKED_RIGHT, method="lower")),
        fitted_on=", ".join(f"{each.name} ({len(each.scores)} photos)" for each in data),
    )
    report = {"all": calibration_report(predicted, right, calibrator.threshold)}
    start = 0
    for each in data:
        part = slice(start, start := start + len(each.scores))
        report[each.name] = calibration_report(predicted[part], right[part], calibrator.threshold)
    return calibrator, report


def _direction(training: CalibrationData) -> tuple[float, ...]:
    """Return D weights of the mean annotation vector: those of a ridge regression to the score."""
    mean, scale = training.features.mean(0), training.features.std(0)
    scale[scale < 1e-9] = 1.0
    inputs = (training.features - mean) / scale
    scores = np.minimum(training.scores, MOST_SCORE)
    ridge = DIRECTION_RIDGE * np.eye(inputs.shape[1])
    weights = np.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ (scores - scores.mean()))
    return tuple((weights / scale)[len(FEATURES) :].round(6).tolist())


def _fit_logistic(empty: Calibrator, features: np.ndarray, right: np.ndarray) -> Calibrator:
    """Minimise the negative log-likelihood plus RIDGE / 2 x squared weights, by Newton's method."""
    mean, scale = features.mean(0), features.std(0)
    scale[scale < 1e-9] = 1.0
    inputs = np.column_stack([(features - mean) / scale, np.ones(len(features))])
    ridge = np.diag([RIDGE] * features.shape[1] + [1e-6])
    weights = np.zeros(inputs.shape[1])
    for _ in range(100):
        predicted = 1 / (1 + np.exp(-np.clip(inputs @ weights, -50, 50)))
        gradient = inputs.T @ (predicted - right) + ridge @ weights
        curvature = (inputs * (predicted * (1 - predicted))[:, None]).T @ inputs + ridge
        step = np.linalg.solve(curvature, gradient)
        weights -= step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-10:
            break
    vectors = {"mean": mean, "scale": scale, "weights": weights[:-1]}
    found: dict[str, Any] = {n: tuple(vector.tolist()) for n, vector in vectors.items()}
    return replace(empty, **found, bias=float(weights[-1]))


def calibration_report(
    confidence: np.ndarray, right: np.ndarray, threshold: float
) -> dict[str, Any]:
    """Return how well confidences [N] agree with what is right, bool [N].

    Returns:
        num_images; right, the share; ece, the expected calibration error over the bins; auc (None
        where all are right or wrong); threshold, unsure and unsure_right, the shares of all and of
        the right captions below it; bins of equal mass; risk_coverage, for the surest tenth, two
        tenths, ... of the captions the share that is right.
    """
    order, count = np.argsort(confidence, kind="stable"), len(right)
    bins = []
    error = 0.0
    for part in np.array_split(order, min(BINS, count)):
        mean, share = float(confidence[part].mean()), float(right[part].mean())
        bins.append({"confidence": mean, "right": share, "num_images": len(part)})
        error += abs(mean - share) * len(part) / count
    risk_coverage = []
    for tenth in range(1, 11):
        surest = order[::-1][: max(1, round(tenth * count / 10))]
        risk_coverage.append({"coverage": tenth / 10, "right": float(right[surest].mean())})
    below = confidence < threshold
    return {
        "num_images": count,
        "right": float(right.mean()),
        "ece": error,
        "auc": area_under_curve(confidence, right),
        "threshold": threshold,
        "unsure": float(below.mean()),
        "unsure_right": float(below[right].mean()) if right.any() else None,
        "bins": bins,
        "risk_coverage": risk_coverage,
    }


def area_under_curve(confidence: np.ndarray, right: np.ndarray) -> float | None:
    """Return the area under the receiver operating characteristic; None if it is not defined."""
    if right.all() or not right.any():
        return None
    wrong = np.sort(confidence[~right])
    less, not_more = (np.searchsorted(wrong, confidence[right], side) for side in ("left", "right"))
    return float((less + not_more).mean() / 2 / len(wrong))
