"""How sure a score is: corpus figures of any selection of images, and the bootstrap over them.

BLEU and METEOR are functions of summed counts, so no scorer runs twice; the others are means.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from captioner.errors import DataError

# METEOR 1.5 as pycocoevalcap runs it: weights of exact, stem, synonym and paraphrase matches, and
# the parameters of English (Denkowski and Lavie 2014, table 3, task "rank").
_MODULES = np.array([1.0, 0.6, 0.8, 0.6])
_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75

RESAMPLES = 2000  # a multiple of 100
LEVEL = 0.95
FEW_PHOTOS = 50  # of fewer, a metric hardly tells two models apart


def bleu(counts: np.ndarray) -> np.ndarray:
    """Return BLEU-1 to BLEU-4 [..., 4] of summed counts [..., 10], as coco-caption computes them.

    counts: words, words of the closest references, n-grams of n 1 to 4, those of them matched.
    """
    words, reference, guesses, matches = np.split(counts, [1, 2, 6], axis=-1)
    # The two small numbers are coco-caption's: they decide what captions without n-grams score.
    precision = (matches + 1e-15) / (guesses + 1e-9)
    means = np.cumprod(precision, axis=-1) ** (1 / np.arange(1, 5))
    ratio = (words + 1e-15) / (reference + 1e-9)
    return means * np.exp(np.minimum(0, 1 - 1 / ratio))


def meteor(counts: np.ndarray) -> np.ndarray:
    """Return METEOR 1.5 [...] of summed statistics [..., 23] (Denkowski and Lavie 2014, section 2).

    counts: words of caption and reference, function words of both; for each of four modules the
    content words matched in both and the function words matched in both; chunks (0 for a perfect
    match), all words matched in both.
    """
    words, functions = counts[..., 0:2], counts[..., 2:4]
    matched = counts[..., 4:20].reshape(*counts.shape[:-1], 4, 2, 2)  # module, kind, side
    chunks, aligned = counts[..., 20], counts[..., 21:23]
    weights = np.array([_DELTA, 1 - _DELTA])
    found = np.einsum("...mks,m,k->...s", matched, _MODULES, weights)
    present = _DELTA * (words - functions) + (1 - _DELTA) * functions
    with np.errstate(divide="ignore", invalid="ignore"):
        precision, recall = np.moveaxis(np.nan_to_num(found / present), -1, 0)
        mean = 1 / ((1 - _ALPHA) / precision + _ALPHA / recall)
        fragments = np.nan_to_num(chunks / aligned.mean(-1))
    return mean * (1 - _GAMMA * fragments**_BETA)


@dataclass(frozen=True)
class ImageScores:
    """The statistics of N images from which the corpus figures of any selection follow."""

    image_ids: list[Hashable]
    means: dict[str, np.ndarray]  # by metric, float64 [N]
    counts: dict[str, np.ndarray]  # of Bleu_4 [N, 10] and METEOR [N, 23], where computed

    @classmethod
    def of(cls, images: Sequence[Mapping[str, Any]]) -> ImageScores:
        """Build the statistics from the entries of "images" in results.json."""
        counts = images[0]["counts"]
        means = [n for n in images[0]["scores"] if not n.startswith("Bleu") and n not in counts]
        return cls(
            [image["image_id"] for image in images],
            {n: np.array([image["scores"][n] for image in images]) for n in means},
            {n: np.array([image["counts"][n] for image in images], float) for n in counts},
        )

    def corpus(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Return corpus figures [...] of selections, which hold image n weights [..., n] times."""
        figures: dict[str, np.ndarray] = {}
        if "Bleu_4" in self.counts:
            scores = bleu(weights @ self.counts["Bleu_4"])
            figures |= {f"Bleu_{n + 1}": scores[..., n] for n in range(4)}
        if "METEOR" in self.counts:
            figures["METEOR"] = meteor(weights @ self.counts["METEOR"])
        sizes = weights.sum(-1)
        return figures | {name: weights @ each / sizes for name, each in self.means.items()}


@dataclass(frozen=True)
class Difference:
    """A metric of two systems on the same images: b - a, its interval, and a two-sided p.

    p is the share of resamples on the far side of no difference, doubled (Koehn 2004, section 4),
    and at least 1 / resamples.
    """

    a: float
    b: float
    difference: float
    low: float
    high: float
    p: float


def bootstrap_intervals(scores: ImageScores) -> dict[str, tuple[float, float]]:
    """Return the 95 % percentile bootstrap interval of each corpus figure, over images."""
    return {name: _interval(values) for name, values in _drawn(scores).items()}


def interval_of_mean(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the mean of all values, over groups.

    The values of a group, such as the words of an image, are drawn together; no group is empty.
    """
    sums = np.array([sum(group) for group in groups])
    sizes = np.array([len(group) for group in groups])
    count = len(groups)
    weights = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), RESAMPLES)
    return _interval((weights @ sums) / (weights @ sizes))


def paired_bootstrap(a: ImageScores, b: ImageScores) -> dict[str, Difference]:
    """Compare two systems on the same resamples of the same images, in the metrics of both."""
    positions = {image_id: index for index, image_id in enumerate(b.image_ids)}
    if alone := set(a.image_ids) ^ set(b.image_ids):
        raise DataError(
            f"the two results are not of the same images: {len(alone)} are in one alone, such as "
            f"{sorted(map(str, alone))[0]}; evaluate both models on the same photos"
        )
    order = [positions[image_id] for image_id in a.image_ids]
    b = ImageScores(
        a.image_ids,
        {name: each[order] for name, each in b.means.items()},
        {name: each[order] for name, each in b.counts.items()},
    )
    first, second = (each.corpus(np.ones(len(order))) for each in (a, b))
    first_drawn, second_drawn = _drawn(a), _drawn(b)
    found = {}
    for name in [name for name in first if name in second]:
        drawn = second_drawn[name] - first_drawn[name]
        drawn[np.abs(drawn) < 1e-6] = 0.0  # BLEU's small numbers
        tail = min((drawn <= 0).mean(), (drawn >= 0).mean())
        p = float(min(1.0, max(2 * tail, 1 / RESAMPLES)))
        one, other = float(first[name]), float(second[name])
        found[name] = Difference(one, other, other - one, *_interval(drawn), p)
    return found


def _drawn(scores: ImageScores) -> dict[str, np.ndarray]:
    """Return corpus figures [RESAMPLES] of bootstrap samples: images drawn with replacement."""
    generator, images = np.random.default_rng(0), len(scores.image_ids)
    parts = []
    for _ in range(RESAMPLES // 100):  # 100 at a time save memory: COCO has 40,000 images
        weights = generator.multinomial(images, np.full(images, 1 / images), 100)
        parts.append(scores.corpus(weights.astype(float)))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _interval(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
