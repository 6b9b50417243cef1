"""One model from several that began alike: the mean of their weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from captioner.checkpoint import load_model, model_folder
from captioner.config import ModelConfig
from captioner.data.vocabulary import Vocabulary
from captioner.errors import CheckpointError
from captioner.models.model import CaptionModel

# Settings of training, which leave no trace in a model.
TRAINING_ONLY = frozenset(
    "weights trainable_from batch_norm dropout drop_path embed_dropout semi_sampling".split()
)
# Settings without weights, which may differ (a hard model and the soft one that it began with): the
# average has the first model's.
FROM_THE_FIRST = frozenset(
    "height_px width_px select at_test temperature key_smoothing values".split()
)
# Mean cosine of two decoders' weight matrices: about 0 for models that began apart, which average
# to noise; the bundled soft and hard models, of one ancestor, have 0.96.
LEAST_ALIKE = 0.2


def average_models(models: Sequence[str | Path]) -> tuple[CaptionModel, ModelConfig, Vocabulary]:
    """Average the weights of models (model soups, Wortsman et al., 2022).

    Args:
        models: Two or more model folders, runs or bundled models that were fine-tuned from the same
            model.

    Returns:
        A model with the mean of every weight, and the settings and vocabulary of the first.

    Raises:
        CheckpointError: Fewer than two models, one that cannot be read, or models that differ in
            kind; the message names what differs.
    """
    if len(models) < 2:
        raise CheckpointError(
            f"{models[0] if models else 'average'}: one model is no average; name two or more"
        )
    first, *others = (model_folder(model) for model in models)
    average, config, vocabulary = load_model(first)
    first_weights = average.state_dict()
    sums = {name: value.double() for name, value in first_weights.items()}
    for folder in others:
        model, other_config, other_vocabulary = load_model(folder)
        weights = model.state_dict()
        difference = _difference(config, other_config)
        if other_vocabulary.tokens != vocabulary.tokens:
            difference = "its vocabulary differs"
        elif not difference:
            resized = [name for name in weights if weights[name].shape != sums[name].shape]
            difference = f"{resized[0]} has another size" if resized else ""
        if difference:
            raise CheckpointError(
                f"{folder}: is not a model like {first} ({difference}); average models of one "
                "kind, fine-tuned from the same model"
            )
        cosine = _mean_cosine(first_weights, weights)
        if cosine < LEAST_ALIKE:
            raise CheckpointError(
                f"{folder}: did not begin with the same model as {first} (the cosine of their "
                f"weights is {cosine:.2f}), and the average of such models writes noise; average "
                "models that were fine-tuned from one model"
            )
        for name, value in weights.items():
            sums[name] += value
    average.load_state_dict({name: value / len(models) for name, value in sums.items()})
    return average, config, vocabulary


def _mean_cosine(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return the mean cosine of the decoders' weight matrices."""
    cosines = [
        float(torch.cosine_similarity(value.flatten(), other[name].flatten(), dim=0))
        for name, value in one.items()
        if name.startswith("decoder.") and value.dim() > 1
    ]
    return sum(cosines) / len(cosines)


def _difference(one: ModelConfig, other: ModelConfig) -> str:
    """Return in which setting two models are of different kinds, or ""."""
    for section in ("preprocess", "encoder", "attention", "decoder"):
        first: dict[str, Any] = vars(getattr(one, section))
        second: dict[str, Any] = vars(getattr(other, section))
        for name in first:
            if name not in TRAINING_ONLY | FROM_THE_FIRST and first[name] != second[name]:
                return f"{section}.{name} differs"
    return ""
