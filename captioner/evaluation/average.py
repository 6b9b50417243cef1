"""One model from several that began alike: the mean of their weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from captioner.checkpoint import load_model, model_folder
from captioner.config import ModelConfig
from captioner.data.vocabulary import Vocabulary
from captioner.errors import CheckpointError
from captioner.models.model import CaptionModel

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
            kind.
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
        model, _, other_vocabulary = load_model(folder)
        weights = model.state_dict()
        shapes, expected = (
            {name: value.shape for name, value in each.items()} for each in (weights, sums)
        )
        if other_vocabulary.tokens != vocabulary.tokens or shapes != expected:
            what = "weights differ in size" if shapes != expected else "vocabulary differs"
            raise CheckpointError(
                f"{folder}: is not a model like {first} (its {what}); average models of one "
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
