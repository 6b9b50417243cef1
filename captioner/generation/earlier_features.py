"""What the calibrators of earlier versions read of a caption; model folders may hold one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from captioner.generation.beam_search import Hypothesis
from captioner.generation.confidence import Calibrator, confidence_features, mean_log_prob

MAX_N = 4


def earlier_inputs(
    calibrator: Calibrator, hypotheses: Sequence[Hypothesis], index: int, image: np.ndarray
) -> list[float]:
    """Return what a calibrator weighs: its features, and products with its directions.

    Each of the `directions` is D numbers, for the mean over the words of the annotation vectors
    [L, D] that they attend to; the `direction` is for the mean of all annotation vectors.
    """
    chosen = hypotheses[index]
    found = confidence_features(chosen, image, calibrator.matcher)
    found |= earlier_features(hypotheses, index)
    attended = chosen.maps.sum(0) @ image / len(chosen.tokens)
    inputs = [found[name] for name in calibrator.features]
    inputs += [np.array(direction) @ attended for direction in calibrator.directions]
    if calibrator.direction:
        inputs.append(image.mean(0) @ np.array(calibrator.direction))
    return inputs


def earlier_features(hypotheses: Sequence[Hypothesis], index: int) -> dict[str, float]:
    """Return the EARLIER_FEATURES of one of the hypotheses of an image, by name.

    margin: mean_log_prob minus that of the best other hypothesis; NaN without others.
    least_log_prob: Log-probability of the least likely word.
    length: Words.
    entropy: Mean entropy of the words' attention maps, as a share of that of a uniform map.
    agreement: Mean similarity of the other hypotheses: cosine of the counts of n-grams, averaged
        over n of 1 to 4 (CIDEr-D without document frequencies); NaN without others.
    """
    chosen, others = hypotheses[index], [*hypotheses[:index], *hypotheses[index + 1 :]]
    maps = chosen.maps.astype(np.float64)
    entropy = -(maps * np.log(np.maximum(maps, 1e-12))).sum(-1).mean()
    similar = [similarity(chosen.tokens, each.tokens) for each in others]
    return {
        "margin": mean_log_prob(chosen) - max(map(mean_log_prob, others), default=math.nan),
        "least_log_prob": float(chosen.log_probs.min()),
        "length": float(len(chosen.tokens)),
        "entropy": float(entropy) / math.log(max(2, maps.shape[-1])),
        "agreement": float(np.mean(similar)) if others else math.nan,
    }


def similarity(one: Sequence[int], other: Sequence[int]) -> float:
    """Return the cosine of two captions' n-gram counts, averaged over n of 1 to 4.

    >>> similarity([4, 5], [4, 5]), similarity([4], [5])
    (0.5, 0.0)
    """
    total = 0.0
    for n in range(1, MAX_N + 1):
        a, b = (
            Counter(tuple(text[place : place + n]) for place in range(len(text) - n + 1))
            for text in (one, other)
        )
        norms = math.sqrt(sum(v * v for v in a.values()) * sum(v * v for v in b.values()))
        total += sum(count * b[gram] for gram, count in a.items()) / norms if norms else 0.0
    return total / MAX_N
