"""Training on the captions of the data, and on what words teach beside them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from captioner.config import LossConfig, TextConfig
from captioner.data.batch import Batch
from captioner.data.texts import TextCaptions
from captioner.models.build import CaptionModel
from captioner.models.decoders import TeacherForcingOutput
from captioner.training.distillation import Teachers
from captioner.training.losses import caption_losses
from captioner.training.reinforce import HardAttentionLoss
from captioner.training.task import LossOutput, TrainingTask
from captioner.training.word_concepts import Concepts
from captioner.types import Grid


class CrossEntropy(TrainingTask):
    """The captions of the data, word by word (equation 14, and equation 12 for hard attention)."""

    def __init__(
        self,
        loss: LossConfig,
        hard: HardAttentionLoss | None,
        *,
        samples: int,
        teachers: Teachers | None = None,
    ) -> None:
        super().__init__()
        self.loss = loss
        self.hard = hard
        self.samples = samples if hard is not None else 1
        self.teachers = teachers

    def forward(self, model: CaptionModel, batch: Batch) -> LossOutput:
        grid = model.encoder(batch.inputs, from_frozen=batch.from_frozen)
        return self.of_grid(model, grid, batch)

    def of_grid(self, model: CaptionModel, grid: Grid, batch: Batch) -> LossOutput:
        soft_targets = None
        if self.teachers is not None:  # words are packed step by step, so their order stays
            soft_targets = self.teachers(batch).repeat_interleave(self.samples, 0)
        batch = batch.repeated(self.samples)
        forced: TeacherForcingOutput = model(grid, batch.image_index, batch.tokens, batch.lengths)
        parts = caption_losses(
            forced,
            batch.targets,
            batch.lengths,
            doubly_stochastic=self.loss.doubly_stochastic,
            label_smoothing=self.loss.label_smoothing,
            hard=self.hard,
            weights=batch.weights,
            soft_targets=soft_targets,
            distillation=self.loss.distillation,
        )
        return parts, forced, batch.lengths


class WithConcepts(TrainingTask):
    """Cross-entropy, and what words teach as cells of a grid: from photos, from text, or both."""

    def __init__(
        self,
        captions: CrossEntropy,
        concepts: Concepts,
        seen: list[np.ndarray],
        texts: TextCaptions | None,
        *,
        loss: LossConfig,
        text: TextConfig,
    ) -> None:
        """seen: of each photo of the data set, the words of its captions."""
        super().__init__()
        self.captions = captions
        self.concepts = concepts
        self.seen = seen
        self.texts = texts
        self.loss = loss
        self.text = text
        self.step = 0  # of the texts; no tensor, or each step would wait for a GPU to tell it

    def forward(self, model: CaptionModel, batch: Batch) -> LossOutput:
        grid = model.encoder(batch.inputs, from_frozen=batch.from_frozen)
        parts, forced, lengths = self.captions.of_grid(model, grid, batch)
        if self.loss.visual_concepts:
            seen = self._seen(batch.images).to(grid.features.device, non_blocking=True)
            found = self.concepts.loss(grid.features, seen)
            parts["total"] = parts["total"] + self.loss.visual_concepts * found
            parts["visual_concepts"] = found.detach()
        if self.texts is not None:
            written = self._from_text(model, self.texts)
            parts["total"] = parts["total"] + self.text.weight * written["total"]
            parts["text_cross_entropy"] = written["cross_entropy"]
        return parts, forced, lengths

    def _seen(self, photos: Tensor) -> Tensor:
        """bool [B, V]: the words of each photo's captions."""
        count = self.concepts.words.num_embeddings
        seen = torch.zeros(len(photos), count, dtype=torch.bool)
        for row, photo in enumerate(photos.tolist()):
            seen[row, torch.from_numpy(self.seen[photo])] = True
        return seen

    def _from_text(self, model: CaptionModel, texts: TextCaptions) -> dict[str, Tensor]:
        batch = texts.batch(self.step, size=self.text.batch_size, cells=self.text.cells)
        self.step += 1
        device = self.concepts.words.weight.device
        grid = self.concepts.as_grid(batch.cells.to(device, non_blocking=True))
        rows = torch.arange(len(batch.lengths), device=device)
        tokens = batch.tokens.to(device, non_blocking=True)
        forced: TeacherForcingOutput = model(grid, rows, tokens, batch.lengths)
        return caption_losses(
            forced,
            batch.targets.to(device, non_blocking=True),
            batch.lengths,
            doubly_stochastic=0.0,
            label_smoothing=self.loss.label_smoothing,
        )

    def get_extra_state(self) -> int:
        return self.step

    def set_extra_state(self, state: int) -> None:
        self.step = state

    def learned(self) -> list[nn.Parameter]:
        return list(self.concepts.parameters())
