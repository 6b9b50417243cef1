"""How likely a caption is right: features of a hypothesis, and a calibrator that weighs them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
from array_api_compat import array_namespace
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from captioner.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from captioner.errors import CheckpointError
from captioner.generation.arrays import Array, log_softmax
from captioner.generation.beam_search import Hypothesis

# Files in a model folder: the calibrator, and the weights of its matcher, if it has one.
CALIBRATOR, MATCHER = "calibrator.json", "matcher.safetensors"
FEATURES = ("mean_log_prob", "rare_log_prob", "rarity", "attended_norm", "image_norm")
MATCH = "match"  # one more, where training images were enough to train a matcher
EARLIER_FEATURES = ("margin", "least_log_prob", "length", "entropy", "agreement")
COMMON_WORDS = 8  # the most frequent words of a vocabulary, which say little about an image
LEAST_LOG_PROB, CERTAINTY_SIZE = -8.0, 3  # of `match`: lower bound; inputs made of each


def confidence_features(
    hypothesis: Hypothesis, image: np.ndarray, matcher: Mapping[str, np.ndarray] | None = None
) -> dict[str, float]:
    """Return what calibrators read of a hypothesis of an image [L, D], by name.

    mean_log_prob: Mean log-probability a word, end token included, in nats.
    rare_log_prob: Mean log-probability of the words, each weighed by its rarity: the logarithm of
        its place in the vocabulary (by falling frequency), 0 for the COMMON_WORDS first.
    rarity: Mean of these weights.
    attended_norm: Logarithm of the annotation vectors' norms under the attention map, mean of the
        words: vectors are long where the encoder finds what it knows.
    image_norm: Norm of the image's mean annotation vector.
    match: The logit of `match`, the network of these weights, that the caption is right.
    """
    maps = hypothesis.maps.astype(np.float64)
    place = np.array(hypothesis.tokens, dtype=np.float64) + 1  # in the vocabulary
    rarity = np.log(np.maximum(place / (len(SPECIAL_TOKENS) + COMMON_WORDS), 1.0))
    norms = np.log(np.maximum(maps @ np.linalg.norm(image, axis=-1), 1e-9))
    features = {
        "mean_log_prob": mean_log_prob(hypothesis),
        "rare_log_prob": float(rarity @ hypothesis.log_probs) / max(float(rarity.sum()), 1e-9),
        "rarity": float(rarity.mean()),
        "attended_norm": float(norms.mean()),
        "image_norm": float(np.linalg.norm(image.mean(0))),
    }
    if matcher:
        caption = np.array([[hypothesis.tokens]]), hypothesis.log_probs[None, None]
        features[MATCH] = float(match(matcher, image[None], *caption)[0, 0, 0])
    return features


def match(
    weights: Mapping[str, Array],
    grid: Array,
    tokens: Array,
    log_probs: Array,
    dropout: Callable[[Array], Array] = lambda values: values,
) -> Array:
    """Return for captions the logit that they are right, and the expected CIDEr-D: [B, K, 2].

    A network of tensors, to be trained, or NumPy arrays. Each word attends to the grid, as in
    "Stacked Cross Attention" for image-text matching (Lee et al., 2018).

    Args:
        weights: By name, from `evaluation.matching.train_matcher`.
        grid: [B, L, D], annotation vectors.
        tokens: [B, K, T], the words of K captions of each image, `<pad>` after the last.
        log_probs: [B, K, T], of these words under the captioning model, in nats.
        dropout: Of annotation vectors, words and hidden units, in training.
    """
    xp = array_namespace(grid)
    images, captions, length = tokens.shape

    def layer(name: str, *inputs: Array) -> Array:
        return xp.concat(inputs, axis=-1) @ weights[name] + weights[f"{name}_bias"]

    def hidden(name: str, *inputs: Array) -> Array:
        return xp.clip(layer(name, *inputs), min=0)  # rectified

    cells = dropout((grid - weights["mean"]) / weights["scale"])
    words = dropout(weights["words"][tokens])  # [B, K, T, A]
    query = xp.reshape(words, (images, captions * length, -1))
    scores = query @ xp.matrix_transpose(layer("key", cells)) * (2 / words.shape[-1] ** 0.5)
    seen = xp.reshape(xp.exp(log_softmax(scores)) @ layer("value", cells), words.shape)
    log_probs = xp.clip(log_probs, min=LEAST_LOG_PROB)
    certainty = xp.stack([-log_probs / 2, xp.exp(log_probs), xp.exp(log_probs / 8)], axis=-1)
    # Surprisal, probability, a flatter one, of like size; matchers of earlier versions read none.
    certainty = certainty[..., : weights["pair"].shape[0] - 3 * words.shape[-1]]
    found = dropout(hidden("pair", words, seen, words * seen, certainty))
    found = xp.concat([found, certainty], axis=-1)
    is_word = (tokens != Vocabulary.pad)[..., None]
    found = xp.where(is_word, found, xp.zeros_like(found))
    mean = xp.sum(found, axis=2) / xp.sum(xp.astype(is_word, found.dtype), axis=2)
    whole = xp.concat([xp.mean(cells, axis=1), xp.max(cells, axis=1)], axis=-1)
    image = xp.broadcast_to(hidden("image", whole)[:, None], (*mean.shape[:2], words.shape[-1]))
    return layer("match", dropout(hidden("hidden", mean, xp.max(found, axis=2), image)))


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
        direction, directions: Of earlier versions: see `earlier_features.earlier_inputs`.
        matcher: Weights of the network of the feature `match`, if that is among the features.
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
    matcher: Mapping[str, np.ndarray] | None = field(default=None, compare=False)

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Return the probability [N] that captions of these features [N, features] are right."""
        standard = (features - np.array(self.mean)) / np.array(self.scale)
        logits = np.nan_to_num(standard) @ np.array(self.weights) + self.bias
        return 1 / (1 + np.exp(-np.clip(logits, -50, 50)))

    def confidence(
        self, hypotheses: Sequence[Hypothesis], image: np.ndarray, index: int = 0
    ) -> float:
        """Return the probability that one of the hypotheses of an image [L, D] is right."""
        features = confidence_features(hypotheses[index], image, self.matcher)
        inputs = [features[name] for name in self.features if name in features]
        if len(inputs) < len(self.mean):
            from captioner.generation.earlier_features import earlier_inputs

            inputs = earlier_inputs(self, hypotheses, index, image)
        return float(self.probabilities(np.array([inputs]))[0])

    def to_files(self) -> dict[str, bytes]:
        """Return the contents of its files in a model folder, by name."""
        content = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "matcher"}
        files = {CALIBRATOR: (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()}
        if self.matcher:
            files[MATCHER] = save({n: w.astype(np.float16) for n, w in self.matcher.items()})
        return files

    @classmethod
    def from_folder(cls, folder: Path) -> Calibrator:
        """Read its files in a verified model folder."""
        try:
            content = json.loads((folder / CALIBRATOR).read_bytes())
            found = {f.name: content[f.name] for f in fields(cls) if f.name in content}
            for name in ("mean", "scale", "weights", "features"):
                found[name] = tuple(found[name])
            found["direction"] = tuple(found.get("direction", ()))
            found["directions"] = tuple(map(tuple, found.get("directions", ())))
            if not {*found["features"]} <= {*FEATURES, MATCH, *EARLIER_FEATURES}:
                raise ValueError(f"its features are {', '.join(found['features'])}")
            if MATCH in found["features"]:
                weights = load_file(folder / MATCHER)
                found["matcher"] = {name: w.astype(np.float32) for name, w in weights.items()}
            return cls(**found)
        except (LookupError, TypeError, ValueError, OSError, SafetensorError) as error:
            raise CheckpointError(
                f"{CALIBRATOR}: not a calibrator of this version of captioner ({error}); make one "
                "with captioner calibrate, or remove the file and its line in manifest.json"
            ) from None
