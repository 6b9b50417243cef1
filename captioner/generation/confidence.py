"""How likely a caption is right: features of a hypothesis, and a calibrator that weighs them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np

from captioner.data.vocabulary import SPECIAL_TOKENS
from captioner.errors import CheckpointError
from captioner.generation.beam_search import Hypothesis

CALIBRATOR = "calibrator.json"  # its file in a model folder
# Of a calibrator that is fitted now, and of earlier versions.
FEATURES = ("mean_log_prob", "rare_log_prob", "rarity", "attended_norm", "image_norm")
EARLIER_FEATURES = ("margin", "least_log_prob", "length", "entropy", "agreement")
COMMON_WORDS = 8  # the most frequent words of a vocabulary, which say little about an image


def confidence_features(hypothesis: Hypothesis, image: np.ndarray) -> dict[str, float]:
    """Return what calibrators read of a hypothesis of an image [L, D], by name.

    mean_log_prob: Mean log-probability a word, end token included, in nats.
    rare_log_prob: Mean log-probability of the words, each weighed by its rarity: the logarithm of
        its place in the vocabulary (by falling frequency), 0 for the COMMON_WORDS first.
    rarity: Mean of these weights.
    attended_norm: Logarithm of the annotation vectors' norms under the attention map, mean of the
        words: vectors are long where the encoder finds what it knows.
    image_norm: Norm of the image's mean annotation vector.
    """
    maps = hypothesis.maps.astype(np.float64)
    place = np.array(hypothesis.tokens, dtype=np.float64) + 1  # in the vocabulary
    rarity = np.log(np.maximum(place / (len(SPECIAL_TOKENS) + COMMON_WORDS), 1.0))
    norms = np.log(np.maximum(maps @ np.linalg.norm(image, axis=-1), 1e-9))
    return {
        "mean_log_prob": mean_log_prob(hypothesis),
        "rare_log_prob": float(rarity @ hypothesis.log_probs) / max(float(rarity.sum()), 1e-9),
        "rarity": float(rarity.mean()),
        "attended_norm": float(norms.mean()),
        "image_norm": float(np.linalg.norm(image.mean(0))),
    }


def mean_log_prob(hypothesis: Hypothesis) -> float:
    """Return the mean log-probability a word, end token included, in nats."""
    end = [] if hypothesis.end_log_prob is None else [hypothesis.end_log_prob]
    values = [*hypothesis.log_probs.tolist(), *end]
    return sum(values) / len(values)


@dataclass(frozen=True)
class Calibrator:
    """A logistic regression from features of a caption to the probability that it is right.

    Right means that the caption's CIDEr-D against its references (from 0 to 10, document
    frequencies of the training captions) is at least `right_from`.

    Attributes:
        mean, scale: Subtracted from each feature; what it is then divided by. A feature that is NaN
            counts as its mean.
        weights, bias: Weight of each scaled feature; added to their sum.
        threshold: Captions of less confidence are unsure; at most a tenth of the right captions
            that the calibrator was fitted on are.
        right_from: CIDEr-D from which a caption is right.
        fitted_on: What data it was fitted on.
        features: Names of the features (`confidence_features`); earlier versions had others.
        direction: D numbers. The product of the image's mean annotation vector with them is a
            further feature: how right the captions of similar training images are.
        directions: The same of earlier versions: rows of D numbers, for the mean over the words of
            the annotation vectors that they attend to.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float
    threshold: float
    right_from: float
    fitted_on: str = ""
    features: tuple[str, ...] = FEATURES
    direction: tuple[float, ...] = ()
    directions: tuple[tuple[float, ...], ...] = ()

    @property
    def compares_captions(self) -> bool:
        """Whether a feature needs the other captions of the search (of earlier versions)."""
        return not {"margin", "agreement"}.isdisjoint(self.features)

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Return the probability [N] that captions of these features [N, features] are right."""
        standard = (features - np.array(self.mean)) / np.array(self.scale)
        logits = np.nan_to_num(standard) @ np.array(self.weights) + self.bias
        return 1 / (1 + np.exp(-np.clip(logits, -50, 50)))

    def confidence(
        self, hypotheses: Sequence[Hypothesis], image: np.ndarray, index: int = 0
    ) -> float:
        """Return the probability that one of the hypotheses of an image [L, D] is right."""
        hypothesis = hypotheses[index]
        features = confidence_features(hypothesis, image)
        if not set(self.features) <= set(FEATURES):
            from captioner.generation.earlier_features import earlier_features

            features |= earlier_features(hypotheses, index)
        inputs = [features[name] for name in self.features]
        attended = hypothesis.maps.sum(0) @ image / len(hypothesis.tokens)
        inputs += [np.array(direction) @ attended for direction in self.directions]
        if self.direction:
            inputs.append(image.mean(0) @ np.array(self.direction))
        return float(self.probabilities(np.array([inputs]))[0])

    def to_json(self) -> bytes:
        """Return the content of `calibrator.json`."""
        return (json.dumps(asdict(self), indent=1, allow_nan=False) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes) -> Calibrator:
        """Read the content of `calibrator.json`."""
        try:
            content = json.loads(data)
            found = {f.name: content[f.name] for f in fields(cls) if f.name in content}
            for name in ("mean", "scale", "weights", "features"):
                found[name] = tuple(found[name])
            found["direction"] = tuple(found.get("direction", ()))
            found["directions"] = tuple(map(tuple, found.get("directions", ())))
            calibrator = cls(**found)
            if not set(calibrator.features) <= {*FEATURES, *EARLIER_FEATURES}:
                raise ValueError(f"its features are {', '.join(calibrator.features)}")
            return calibrator
        except (LookupError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{CALIBRATOR}: not a calibrator of this version of captioner ({error}); make one "
                "with captioner calibrate, or remove the file and its line in manifest.json"
            ) from None
