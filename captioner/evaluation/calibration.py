"""Fit the calibrator that gives captions their confidence, and measure how good it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from captioner.data.images import opened
from captioner.errors import DataError, ImageError
from captioner.evaluation.metrics import CiderD, tokenize
from captioner.generation import Hypothesis, search
from captioner.generation.arrays import to_numpy
from captioner.generation.confidence import FEATURES, MATCH, Calibrator, confidence_features
from captioner.generation.scoring import force_decode
from captioner.log import logger, progress_bar

if TYPE_CHECKING:
    from captioner.captioner import Captioner
    from captioner.data.splits import CaptionedImage

RIGHT_FROM = 0.5
FOLDS = 5
BINS = 10
RIDGE = 1.0  # weight of the squared weights, in captions
# Training images captioned too: for each validation image, at most, and bytes of their grids.
TRAINING_SHARE, TRAINING_IMAGES, TRAINING_BYTES = 20, 10_000, 2**30
LEAST_FOR_MATCHER = 250  # training images
MOST_SCORE = 2.0  # no higher CIDEr-D counts: few captions have one
MARKED_RIGHT = 0.1  # share of the right captions that may be marked as unsure
LEAST_IMAGES = 20


@dataclass(frozen=True)
class CalibrationData:
    """Captions of one data set.

    Attributes:
        features: [N, F], the `confidence_features`.
        scores: [N], CIDEr-D, from 0 to 10.
    """

    name: str
    features: np.ndarray
    scores: np.ndarray


def calibrate(
    captioner: Captioner,
    sources: Sequence[tuple[str, Sequence[CaptionedImage]]],
    training: Sequence[CaptionedImage],
    *,
    right_from: float = RIGHT_FROM,
) -> tuple[Calibrator, dict[str, Any]]:
    """Caption validation images, and training images to train a matcher; fit as `fit` does.

    Args:
        sources: Name of each data set, and its validation images.
        training: Other images, of which LEAST_FOR_MATCHER are enough for a matcher; their captions
            also give CIDEr-D's document frequencies.
    """
    matcher = matcher_for(captioner, training, sum(len(x) for _, x in sources), right_from)
    data = [collect(captioner, name, images, training, matcher) for name, images in sources]
    return fit(data, matcher, right_from=right_from)


def caption_scores(
    captions: Sequence[str],
    references: Sequence[Sequence[str]],
    training: Sequence[Sequence[str]] = (),
) -> np.ndarray:
    """Return CIDEr-D [N], from 0 to 10, of each caption against its references.

    Document frequencies are those of the captions of each training image, or of the references.
    """
    scorer = CiderD(list(map(_words, references)), list(map(_words, training)) or None)
    return scorer.scores(range(len(references)), _words(captions))


def _words(texts: Sequence[str]) -> list[list[str]]:
    return [tokenize(text).split() for text in texts]


def collect(
    captioner: Captioner,
    name: str,
    images: Sequence[CaptionedImage],
    training: Sequence[CaptionedImage] = (),
    matcher: Mapping[str, np.ndarray] | None = None,
) -> CalibrationData:
    """Caption the images that can be read; return features and scores of the captions.

    Args:
        name: Of the data set, for the report and the model folder.
        training: Images whose captions give CIDEr-D's document frequencies.
        matcher: Weights of the network of the feature `match`; None leaves it out.
    """
    join, decode = captioner.vocabulary.tokenizer.join, captioner.vocabulary.decode
    rows, texts, references = [], [], []
    for image, found, vectors in _captioned(captioner, name, images):
        rows.append([*confidence_features(found[0], vectors, matcher).values()])
        texts.append(join(decode(found[0].tokens)))
        references.append(image.captions)
    scores = caption_scores(texts, references, [image.captions for image in training])
    return CalibrationData(name, np.array(rows), scores)


def matcher_for(
    captioner: Captioner, images: Sequence[CaptionedImage], count: int, right_from: float
) -> dict[str, np.ndarray] | None:
    """Caption as many training images as `count` validation images need, and train a matcher.

    Images with fewer than half of the most references are left out: they say little of a caption.

    Returns:
        The matcher's weights; None where there are fewer than LEAST_FOR_MATCHER images.
    """
    most = max((len(image.captions) for image in images), default=0)
    usable = [image for image in dict.fromkeys(images) if len(image.captions) >= most / 2]
    order = np.random.default_rng(0).permutation(len(usable))
    chosen = [usable[index] for index in order[: min(TRAINING_SHARE * count, TRAINING_IMAGES)]]
    if len(chosen) < LEAST_FOR_MATCHER:
        return None
    # PyTorch, which evaluation without it does not need
    from captioner.evaluation.matching import OWN, offered_captions, train_matcher

    read, grids, beams = [], [], []
    numbers: dict[tuple[int, ...], int] = {}  # of the different captions
    for image, found, vectors in _captioned(captioner, "training", chosen, count=OWN):
        read.append(image)
        grids.append(vectors.astype(np.float16))
        beams.append([numbers.setdefault(tuple(each.tokens), len(numbers)) for each in found])
        if len(grids) * grids[0].nbytes > TRAINING_BYTES:
            break
    if len(read) < LEAST_FOR_MATCHER:
        return None
    captions = list(numbers)
    offered = offered_captions(np.stack([grid.mean(0, np.float32) for grid in grids]), beams)
    given = {image: [captions[n] for n in row] for image, row in zip(read, offered, strict=True)}
    log_probs = np.zeros((*offered.shape, max(map(len, captions))), np.float32)
    rows = dict(zip(read, log_probs, strict=True))  # views
    for image, found, _ in _captioned(captioner, "likelihood", read, given=given):
        for each, values in zip(found, rows[image], strict=True):
            values[: len(each.tokens)] = each.log_probs
    documents = [_words(image.captions) for image in images]
    scorer = CiderD([_words(image.captions) for image in read], documents)
    join, decode = captioner.vocabulary.tokenizer.join, captioner.vocabulary.decode
    texts = _words([join(decode(tokens)) for tokens in captions])
    owners = np.arange(len(read)).repeat(offered.shape[1])
    scores = scorer.scores(owners.tolist(), [texts[number] for number in offered.ravel()])
    return train_matcher(
        np.stack(grids),
        captions,
        offered,
        log_probs,
        np.minimum(scores, MOST_SCORE).reshape(offered.shape),
        words=len(captioner.vocabulary),
        right_from=right_from,
        device=captioner.device if captioner.engine.name == "torch" else "cpu",
    )


def _captioned(
    captioner: Captioner,
    name: str,
    images: Sequence[CaptionedImage],
    *,
    count: int = 1,
    given: Mapping[CaptionedImage, Sequence[Sequence[int]]] | None = None,
) -> Iterator[tuple[CaptionedImage, list[Hypothesis], np.ndarray]]:
    """Yield each image that can be read with its captions and annotation vectors [L, D].

    Args:
        count: Captions of each image, the best; not more than the search's beams.
        given: Captions of each image, the same number of all, to be scored instead of a search.
    """
    decoder, options = captioner.engine.decoder, captioner.options()
    options = replace(options, num_captions=min(count, options.beam_size))
    read = 0

    def failed(image: CaptionedImage, error: ImageError) -> None:
        bar.update()
        logger.warning(f"{image.path}: left out: {error}")

    with progress_bar(total=len(images), desc=name, unit="photo") as bar:
        for batch in opened(((image, image.path) for image in images), failed, captioner.device):
            grid, _ = captioner.encode([photo for _, photo in batch])
            images_of_batch = [image for image, _ in batch]
            if given is None:
                found = search(decoder, grid, options, captioner.engine.search_graphs)
            else:
                texts = [given[image] for image in images_of_batch]
                found = force_decode(decoder, grid, texts, max_words=options.max_words)
            yield from zip(images_of_batch, found, to_numpy(grid.features), strict=True)
            bar.update(len(batch))
            read += len(batch)
    if not read:
        raise DataError(f"{name}: none of the {len(images)} photos can be read")


def fit(
    data: Sequence[CalibrationData],
    matcher: Mapping[str, np.ndarray] | None = None,
    *,
    right_from: float = RIGHT_FROM,
) -> tuple[Calibrator, dict[str, Any]]:
    """Fit a calibrator on all data sets together.

    Args:
        matcher: The network with which the features of `data` were computed.

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
    names = (*FEATURES, MATCH) if matcher else FEATURES
    empty = Calibrator((), (), (), 0.0, 0.0, right_from, "", names, matcher=matcher)
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
