"""How likely a caption is right: features of a hypothesis, and a calibrator that weighs them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from captioner.errors import CheckpointError
from captioner.generation.beam_search import Hypothesis

CALIBRATOR = "calibrator.json"  # its file in a model folder
FEATURES = (
    "mean_log_prob",
    "margin",
    "least_log_prob",
    "length",
    "entropy",
    "agreement",
)
MAX_N = 4


def confidence_features(hypotheses: Sequence[Hypothesis], index: int = 0) -> np.ndarray:
    """Return what a calibrator reads of one of the hypotheses of an image: float64 [FEATURES].

    mean_log_prob: Mean log-probability a word, end token included, in nats.
    margin: The same minus that of the best other hypothesis; NaN without others.
    least_log_prob: Log-probability of the least likely word.
    length: Words.
    entropy: Mean entropy of the words' attention maps, as a share of that of a uniform map.
    agreement: Mean similarity of the other hypotheses: cosine of the counts of n-grams, averaged
        over n of 1 to 4 (CIDEr-D without document frequencies); NaN without others.
    """
    chosen = hypotheses[index]
    others = [each for place, each in enumerate(hypotheses) if place != index]
    mean = _mean_log_prob(chosen)
    maps = chosen.maps.astype(np.float64)
    entropy = -(maps * np.log(np.maximum(maps, 1e-12))).sum(-1).mean() if len(maps) else 0.0
    return np.array(
        [
            mean,
            mean - max(map(_mean_log_prob, others)) if others else math.nan,
            chosen.log_probs.min() if len(chosen.log_probs) else 0.0,
            len(chosen.tokens),
            entropy / math.log(max(2, maps.shape[-1])),
            np.mean([similarity(chosen.tokens, each.tokens) for each in others])
            if others
            else math.nan,
        ],
        dtype=np.float64,
    )


def _mean_log_prob(hypothesis: Hypothesis) -> float:
    end = [] if hypothesis.end_log_prob is None else [hypothesis.end_log_prob]
    values = [*hypothesis.log_probs.tolist(), *end]
    return sum(values) / max(1, len(values))


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


@dataclass(frozen=True)
class Calibrator:
    """A logistic regression from features of a caption to the probability that it is right.

    Right means that the caption's CIDEr-D against its references (from 0 to 10, document
    frequencies of the training captions) is at least `right_from`.

    Attributes:
        mean: [FEATURES], subtracted from the features; it also stands for a feature that is NaN.
        scale: [FEATURES], by which they are divided then.
        weights: [FEATURES], of the result.
        bias: Added to the weighted sum.
        threshold: Captions of less confidence are unsure; at most a tenth of the right captions
            that the calibrator was fitted on are.
        right_from: CIDEr-D from which a caption is right.
        fitted_on: What data it was fitted on.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float
    threshold: float
    right_from: float
    fitted_on: str = ""

    def __post_init__(self) -> None:
        vectors = (self.mean, self.scale, self.weights)
        numbers = [*self.mean, *self.scale, *self.weights, self.bias, self.threshold]
        if any(len(vector) != len(FEATURES) for vector in vectors):
            raise ValueError(f"a calibrator needs {len(FEATURES)} numbers of each kind")
        if not all(math.isfinite(number) for number in numbers) or min(self.scale) <= 0:
            raise ValueError("a calibrator's numbers must be finite, its scales above 0")

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Return the probability [N] that captions of these features [N, FEATURES] are right."""
        standard = (features - np.array(self.mean)) / np.array(self.scale)
        logits = np.nan_to_num(standard) @ np.array(self.weights) + self.bias
        result: np.ndarray = 1 / (1 + np.exp(-np.clip(logits, -50, 50)))
        return result

    def confidence(self, hypotheses: Sequence[Hypothesis], index: int = 0) -> float:
        """Return the probability that one of the hypotheses of an image is right."""
        return float(self.probabilities(confidence_features(hypotheses, index)[None])[0])

    def to_json(self) -> bytes:
        """Return the content of `calibrator.json`."""
        content = {"features": list(FEATURES), **asdict(self)}
        return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes) -> Calibrator:
        """Read the content of `calibrator.json`.

        Raises:
            CheckpointError: It is no calibrator, or one of other features.
        """
        try:
            content = dict(json.loads(data))
            if tuple(content.pop("features")) != FEATURES:
                raise ValueError("other features")
            return cls(
                mean=tuple(map(float, content["mean"])),
                scale=tuple(map(float, content["scale"])),
                weights=tuple(map(float, content["weights"])),
                bias=float(content["bias"]),
                threshold=float(content["threshold"]),
                right_from=float(content["right_from"]),
                fitted_on=str(content.get("fitted_on", "")),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(
                f"{CALIBRATOR}: not a calibrator of this version of captioner ({error}); make one "
                "with captioner calibrate, or remove the file and its line in manifest.json"
            ) from None
