"""One model from several that began alike: the mean of their weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from captioner.checkpoint import load_model, model_folder
from captioner.config import ModelConfig
from captioner.data.vocabulary import Vocabulary
from captioner.errors import CheckpointError
from captioner.models.model import CaptionModel

# Mean cosine of two decoders' weight matrices: about 0 for models that began apart, which average
# to noise; the bundled soft and hard models, of one ancestor, have 0.96.
LEAST_ALIKE = 0.2


def average_models(models: Sequence[str | Path]) -> tuple[CaptionModel, ModelConfig, Vocabulary]:
    """Average the weights of models fine-tuned from one (model soups, Wortsman et al., 2022).

    The settings and the vocabulary are those of the first.
    """
    first, *others = map(model_folder, models)
    average, config, vocabulary = load_model(first)
    first_weights = average.state_dict()
    sums = {name: value.double() for name, value in first_weights.items()}
    for folder in others:
        model, _, other_vocabulary = load_model(folder)
        weights = model.state_dict()
        shapes, expected = ({n: value.shape for n, value in w.items()} for w in (weights, sums))
        if other_vocabulary.tokens != vocabulary.tokens or shapes != expected:
            raise CheckpointError(
                f"{folder}: is not a model like {first} (its weights differ in size, or its "
                "vocabulary); average models of one kind, fine-tuned from the same model"
            )
        cosines = [
            float(torch.cosine_similarity(value.flatten(), weights[name].flatten(), dim=0))
            for name, value in first_weights.items()
            if name.startswith("decoder.") and value.dim() > 1
        ]
        cosine = sum(cosines) / len(cosines)
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
