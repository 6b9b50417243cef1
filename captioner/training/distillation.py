"""What other models would write, to be learnt beside the captions (Hinton et al., 2015)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from captioner.checkpoint import load_model, model_folder
from captioner.config import Config
from captioner.data.batch import Batch
from captioner.data.vocabulary import Vocabulary
from captioner.errors import ConfigError
from captioner.models.build import CaptionModel
from captioner.models.decoders import TeacherForcingOutput
from captioner.models.fused_encoder import fold_batch_norms


class Teachers:
    """Trained models that read a batch's captions on its photos, as the model that learns does.

    One with hard attention looks as it does at test time. They are no module of the objective's,
    so that checkpoints do not hold them.
    """

    def __init__(self, models: Sequence[CaptionModel]) -> None:
        self.models = [model.eval().requires_grad_(False) for model in models]
        for model in self.models:
            fold_batch_norms(model.encoder)

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tensor:
        """Mean of their probabilities of every word, float32 [M, V], packed as the logits are."""
        return torch.stack([_probabilities(model, batch) for model in self.models]).mean(0)


def _probabilities(model: CaptionModel, batch: Batch) -> Tensor:
    grid = model.encoder(batch.inputs, from_frozen=batch.from_frozen)
    forced: TeacherForcingOutput = model(grid, batch.image_index, batch.tokens, batch.lengths)
    return torch.softmax(forced.logits.float(), dim=-1)


def load_teachers(
    config: Config, student: CaptionModel, vocabulary: Vocabulary, device: torch.device
) -> Teachers:
    """The models of `loss.teachers`, for a student of the recipe.

    Raises:
        CheckpointError: one cannot be read.
        ConfigError: one has other words, or cannot read this recipe's photos.
    """
    models = []
    frozen = _frozen(student) if config.data.cache else ""
    for name in config.loss.teachers:
        with torch.random.fork_rng(devices=[]):  # or the run's own draws would be others
            model, its, words = load_model(model_folder(name), device)
        same = {
            "vocabulary": words.tokens == vocabulary.tokens,
            "preprocess": its.preprocess == config.preprocess,
        }
        if config.data.cache:  # it reads what the student's frozen stages made of a photo
            same["frozen encoder"] = _frozen(model) == frozen
        for key, alike in same.items():
            if not alike:
                raise ConfigError(
                    f"loss.teachers: {name} has another {key} than this recipe; name a model that "
                    "began as this one does (train.start_from)"
                )
        decoder = its.decoder
        reads = (config.data.max_words or decoder.max_positions) + 1  # with the start token
        if decoder.reads_at_most is not None and reads > decoder.reads_at_most:
            raise ConfigError(
                f"loss.teachers: {name} reads {decoder.max_positions} words and no more; lower "
                f"data.max_words to {decoder.max_positions - 1}, or name another teacher"
            )
        models.append(model.to(memory_format=torch.channels_last))
    return Teachers(models)


def _frozen(model: CaptionModel) -> str:
    """What tells the frozen stages from others, even when stored in float16."""
    encoder = model.encoder
    stages = [name for name, _ in encoder.backbone.named_parameters()]
    digest = hashlib.sha256(repr((encoder.frozen_stages, stages)).encode())
    for value in encoder.backbone.stages[: encoder.frozen_stages].state_dict().values():
        digest.update(value.half().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
