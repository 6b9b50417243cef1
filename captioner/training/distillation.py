"""Knowledge distillation: word probabilities and attention of trained models as targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from captioner.checkpoint import load_model, model_folder
from captioner.config.settings import Config
from captioner.data.batch import Batch
from captioner.data.vocabulary import Vocabulary
from captioner.errors import ConfigError
from captioner.models.backbones.sources import fold_batch_norms
from captioner.models.decoders.base import TeacherForcingOutput
from captioner.models.model import CaptionModel
from captioner.runtime.device import at_least_float32


@dataclass(frozen=True)
class TeacherTargets:
    """Mean predictions of the teachers for a batch's captions."""

    probs: Tensor  # [M, V], of the words, packed by step (`pack_by_step`)
    maps: Tensor | None = None  # [N, T, L], zero where a caption has ended; None: not asked for

    def repeated(self, times: int) -> TeacherTargets:
        """Return the targets of captions that are each repeated `times` times in a row."""
        if times == 1:
            return self
        maps = None if self.maps is None else self.maps.repeat_interleave(times, 0)
        return TeacherTargets(self.probs.repeat_interleave(times, 0), maps)

    def attention_divergence(self, maps: Tensor) -> Tensor:
        """Return the KL divergence [N, T] (nats) of maps [N, T, L] from theirs; 0 after the end."""
        assert self.maps is not None
        if maps.shape != self.maps.shape:
            raise ConfigError(
                f"loss.attention_distillation: a teacher attends to {self.maps.shape[-1]} cells "
                f"and this model to {maps.shape[-1]}; use 0, or a teacher with the same grid"
            )
        smallest = torch.finfo(maps.dtype).tiny
        ratio = self.maps.clamp_min(smallest).log() - maps.clamp_min(smallest).log()
        return (self.maps * ratio).sum(-1)


class Teachers:
    """Trained models that read a batch's captions on its images (Hinton et al., 2015).

    One with hard attention attends as at test time. They are no submodule of the task, so that
    checkpoints do not hold them.

    Args:
        models: They are put into evaluation mode and their batch norms are folded.
        attention: Return their attention too.
        temperature: The student's `attention.temperature`, which sharpens what it learns too.
    """

    def __init__(
        self, models: Sequence[CaptionModel], *, attention: bool = False, temperature: float = 1.0
    ) -> None:
        self.attention, self.temperature = attention, temperature
        self.models = [model.eval().requires_grad_(False) for model in models]
        for model in self.models:
            fold_batch_norms(model.encoder)

    @torch.no_grad()
    def __call__(self, batch: Batch) -> TeacherTargets:
        """Read a batch and return the mean of the teachers' predictions."""
        outputs: list[TeacherForcingOutput] = []
        for model in self.models:
            outputs.append(model(model.encoder(batch.inputs, from_frozen=batch.from_frozen), batch))
        probs = [torch.softmax(at_least_float32(output.logits), dim=-1) for output in outputs]
        maps = None
        if self.attention:
            maps = torch.stack([output.maps for output in outputs]).mean(0)
            maps = maps.pow(1 / self.temperature)
            maps = maps / maps.sum(-1, keepdim=True).clamp_min(torch.finfo(maps.dtype).tiny)
        return TeacherTargets(torch.stack(probs).mean(0), maps)


def load_teachers(config: Config, student: CaptionModel, vocabulary: Vocabulary) -> Teachers:
    """Load the models of `loss.teachers` for the student of a recipe, onto its device."""
    models = []
    frozen_stages = student.encoder.frozen_stages
    device = student.decoder.embedding.weight.device
    for name in config.loss.teachers:
        model, model_config, words = load_model(model_folder(name), device)
        if config.data.cache and len(model.encoder.backbone.stages) >= frozen_stages:
            model.encoder.frozen_stages = frozen_stages
        same = {
            "vocabulary": words.tokens == vocabulary.tokens,
            "preprocess": model_config.preprocess == config.preprocess,
            # With a cache, it reads features that the student's frozen stages computed.
            "frozen encoder": not config.data.cache or _same_frozen_stages(model, student),
        }
        for key, is_same in same.items():
            if not is_same:
                raise ConfigError(
                    f"loss.teachers: {name} has another {key} than this recipe; name a model that "
                    "began as this one does (train.start_from; train.start_with vocabulary takes "
                    "its words alone)"
                )
        models.append(model.to(memory_format=torch.channels_last))
    attention = config.loss.attention_distillation > 0
    return Teachers(models, attention=attention, temperature=config.attention.temperature)


def _same_frozen_stages(model: CaptionModel, other: CaptionModel) -> bool:
    """Return whether the frozen stages are the same, where either may be stored in float16."""
    one, two = (
        each.encoder.backbone.stages[: each.encoder.frozen_stages].state_dict()
        for each in (model, other)
    )
    # Not by their bytes: an average of models may have 0 where another has -0.
    return one.keys() == two.keys() and all(
        torch.equal(value.half(), two[name].half()) for name, value in one.items()
    )
