"""What other models would write, to be learnt beside the captions (Hinton et al., 2015)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from captioner.checkpoint import load_model, model_folder
from captioner.config import Config
from captioner.data.dataset import Batch
from captioner.data.vocabulary import Vocabulary
from captioner.decoders import Forced
from captioner.errors import ConfigError
from captioner.model import CaptionModel


class Teachers:
    """Trained models that read a batch's captions on its photos, as the model that learns does.

    They are no module of the objective's, so that checkpoints do not hold them.
    """

    def __init__(self, models: Sequence[CaptionModel]) -> None:
        self.models = [model.eval().requires_grad_(False) for model in models]

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tensor:
        """Mean of their probabilities of every word, float32 [M, V], packed as Forced's logits."""
        total: Tensor | float = 0.0
        for model in self.models:
            grid = model.encoder(batch.inputs, from_frozen=batch.from_frozen)
            forced: Forced = model(grid, batch.photo_index, batch.tokens, batch.lengths)
            total = total + torch.softmax(forced.logits.float(), dim=-1)
        return torch.as_tensor(total / len(self.models))


def load_teachers(config: Config, vocabulary: Vocabulary, device: torch.device) -> Teachers:
    """The models of `loss.teachers`.

    Raises:
        CheckpointError: one cannot be read.
        ConfigError: one has other words, or cannot read this recipe's photos.
    """
    models = []
    for name in config.loss.teachers:
        with torch.random.fork_rng(devices=[]):  # or the run's own draws would be others
            model, its, words = load_model(model_folder(name), device)
        same = {
            "vocabulary": words.tokens == vocabulary.tokens,
            "preprocess": its.preprocess == config.preprocess,
        }
        if config.data.cache:  # of which it reads what its own first stages would have given
            same["encoder.backbone"] = its.encoder.backbone == config.encoder.backbone
            frozen = its.encoder.trainable_from == config.encoder.trainable_from
            same["encoder.trainable_from"] = frozen
        for key, alike in same.items():
            if not alike:
                raise ConfigError(
                    f"loss.teachers: {name} has another {key} than this recipe; name a model that "
                    "was trained with the same, or with train.start_from this one's beginning"
                )
        models.append(model.to(memory_format=torch.channels_last))
    return Teachers(models)
