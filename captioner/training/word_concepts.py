"""Words as cells of a grid: detect words in images, and learn to write from text alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.config import LossConfig, TextConfig
from captioner.data.batch import Batch, words_read
from captioner.data.texts import TextCaptions, read_texts
from captioner.models.decoders.base import TeacherForcingOutput
from captioner.models.model import CaptionModel
from captioner.runtime.device import at_least_float32
from captioner.runtime.distributed import mean_over_processes, rank, world_size
from captioner.runtime.draws import child_seeds
from captioner.training.losses import caption_losses
from captioner.training.task import TaskData
from captioner.types import Grid

INITIAL_LOGIT = -8.0  # of a word in a cell: over some dozens of cells, a probability of about 0.02


class WordConceptTable(nn.Module):
    """A vector for each word in the space of the annotation vectors, used in training only.

    The same vectors are read in both directions: as the cells of a grid from which the decoder
    writes when only text is at hand, and as detectors of words in the cells of an image. The second
    pulls images to where the first has taught the decoder to read.

    Args:
        vocabulary_size: V.
        dim: D.
    """

    def __init__(self, vocabulary_size: int, dim: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary_size, dim)
        self.norm = nn.LayerNorm(dim)
        self.bias = nn.Parameter(torch.full((vocabulary_size,), INITIAL_LOGIT))

    def as_grid(self, words: Tensor) -> Grid:
        """Return words [N, L] as a grid of one row, shaped like the encoder's projection."""
        return Grid(torch.relu(self.norm(self.words(words))), 1, words.shape[1])

    def detection_loss(self, features: Tensor, words: Tensor, count: float | None = None) -> Tensor:
        """Return the cross-entropy of which words an image's captions hold, per word they hold.

        An image shows a word if one of its cells does: 1 - p_w = product over cells of
        (1 - p_iw), the noisy-or of Fang et al. (2015, section 3).

        Args:
            features: [B, L, D].
            words: bool [B, V], the words of the captions.
            count: Number of words to divide by; None takes those of `words`.
        """
        vectors = self.norm(self.words.weight) * features.shape[-1] ** -0.5
        logits = at_least_float32(F.linear(features, vectors, self.bias))
        log_absent = -F.softplus(logits).sum(1)
        log_present = torch.log(-torch.expm1(log_absent.clamp(max=-1e-6)))
        divisor = words.sum().clamp(min=1) if count is None else max(1.0, count)
        return -torch.where(words, log_present, log_absent).sum() / divisor


class WordConcepts(nn.Module):
    """Terms of the loss that share a table of word concepts: detection, text captions, or both.

    Args:
        words_of_images: For each training image, the indices of its captions' words.
        texts: Captions without images, or None.
        loss: Has the weight of the detection loss (`visual_concepts`).
    """

    def __init__(
        self,
        table: WordConceptTable,
        words_of_images: Sequence[np.ndarray],
        texts: TextCaptions | None,
        *,
        loss: LossConfig,
        text: TextConfig,
    ) -> None:
        super().__init__()
        self.table = table
        self.words_of_images = words_of_images
        self.texts = texts
        self.loss = loss
        self.text = text
        self.text_step = 0  # a plain number: a tensor would have to be copied from the GPU

    def forward(
        self, model: CaptionModel, grid: Grid | None, batch: Batch
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted terms, and each as a metric; grid is None without an image."""
        device = self.table.words.weight.device
        loss = torch.zeros((), device=device)
        metrics = {}
        if self.loss.visual_concepts:
            present = sum(len(self.words_of_images[image]) for image in batch.images.tolist())
            count = float(mean_over_processes(torch.tensor(float(present))))
            if grid is not None:
                words = self._words(batch.images).to(device, non_blocking=True)
                detection = self.table.detection_loss(grid.features, words, count)
                loss = loss + self.loss.visual_concepts * detection
                metrics["visual_concepts"] = detection.detach()
        if self.texts is not None:
            text_losses = self._text_losses(model, self.texts)
            if text_losses:
                loss = loss + self.text.weight * text_losses["total"]
                metrics["text_cross_entropy"] = text_losses["cross_entropy"]
        return loss, metrics

    def _words(self, images: Tensor) -> Tensor:
        """Return bool [B, V], the words of each image's captions."""
        words = torch.zeros(len(images), self.table.words.num_embeddings, dtype=torch.bool)
        for row, image in enumerate(images.tolist()):
            words[row, torch.from_numpy(self.words_of_images[image])] = True
        return words

    def _text_losses(self, model: CaptionModel, texts: TextCaptions) -> dict[str, Tensor]:
        """Return the losses of this process's share of a text batch; none for no caption."""
        batch = texts.batch(self.text_step, size=self.text.batch_size, cells=self.text.cells)
        self.text_step += 1
        words = int(batch.lengths.sum()) / world_size()
        batch = batch.share(rank(), world_size())
        if not len(batch.lengths):
            return {}
        device = self.table.words.weight.device
        seeds = batch.seeds.to(device, non_blocking=True)  # of the cells of hard attention
        grid = self.table.as_grid(batch.cells.to(device, non_blocking=True))
        grid = replace(grid, seeds=child_seeds(seeds, 0))
        rows = torch.arange(len(batch.lengths), device=device)
        targets = batch.targets.to(device, non_blocking=True)
        output: TeacherForcingOutput = model(
            grid, rows, words_read(targets), batch.lengths, None, seeds
        )
        # Words need not all be attended to once.
        loss = replace(self.loss, doubly_stochastic=0.0)
        return caption_losses(output, targets, batch.lengths, loss, words=words)

    def get_extra_state(self) -> int:
        return self.text_step

    def set_extra_state(self, state: int) -> None:
        self.text_step = state


def build_word_concepts(data: TaskData) -> WordConcepts | None:
    """Return the terms that `loss.visual_concepts` and `text.file` ask for, or None.

    Captions of the text file that the validation images have too are left out.

    Raises:
        DataError: The file cannot be read.
    """
    config, texts = data.config, None
    if config.text.file is not None:
        texts = TextCaptions(
            read_texts(Path(config.text.file)),
            data.vocabulary,
            max_words=config.data.max_words,
            seed=config.train.seed,
            without=(caption for image in data.validation for caption in image.captions),
        )
    if not config.loss.visual_concepts and texts is None:
        return None
    return WordConcepts(
        WordConceptTable(len(data.vocabulary), data.model.encoder.dim),
        data.captions.words_of_images(len(data.images.training)),
        texts,
        loss=config.loss,
        text=config.text,
    )
