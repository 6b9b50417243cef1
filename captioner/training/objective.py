"""What a training step does with a batch: from photos and captions to a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from captioner.config import Config, LossConfig
from captioner.data.dataset import Batch, CaptionDataset
from captioner.data.vocabulary import END, Vocabulary, tokenize
from captioner.decoders import Forced, packed
from captioner.decoding import sample, writable
from captioner.evaluation.cider import CiderD
from captioner.model import CaptionModel
from captioner.training.hard import HardAttentionLoss, build_hard_loss
from captioner.training.losses import caption_losses

# Named parts of the loss, of which `total` is minimised; what was read; its lengths [N].
Outcome: TypeAlias = "tuple[dict[str, Tensor], Forced, Tensor]"


class Objective(nn.Module, ABC):
    """From a batch to a loss; its state, if it has one, is part of a checkpoint."""

    @abstractmethod
    def forward(self, model: CaptionModel, batch: Batch) -> Outcome:
        """Read the batch's captions, or others of its photos."""


class CrossEntropy(Objective):
    """The captions of the data, word by word (equation 14, and equation 12 for hard attention)."""

    def __init__(self, loss: LossConfig, hard: HardAttentionLoss | None, *, samples: int) -> None:
        super().__init__()
        self.loss = loss
        self.hard = hard
        self.samples = samples if hard is not None else 1

    def forward(self, model: CaptionModel, batch: Batch) -> Outcome:
        batch = batch.repeated(self.samples)
        forced = _read(model, batch)
        parts = caption_losses(
            forced,
            batch.targets,
            batch.lengths,
            doubly_stochastic=self.loss.doubly_stochastic,
            label_smoothing=self.loss.label_smoothing,
            hard=self.hard,
        )
        return parts, forced, batch.lengths


class SelfCritical(Objective):
    """Captions that the model draws itself, weighed by CIDEr-D (Rennie et al., 2017).

    The gradient is that of - sum over captions of (r - b) log p(y), divided by the number of words.
    b is the reward of the model's own greedy caption (section 3.2 of the paper), or the mean of the
    photo's other samples (Luo, 2020), which needs no further search. The reward counts the end of a
    caption as a token: without it, captions learn to end in "a" or "of a".
    """

    def __init__(
        self,
        reward: CiderD,
        vocabulary: Vocabulary,
        *,
        samples: int,
        baseline: Literal["greedy", "leave_one_out"],
        max_words: int,
    ) -> None:
        super().__init__()
        self.reward = reward
        self.vocabulary = vocabulary
        self.samples = samples
        self.baseline = baseline
        self.max_words = max_words

    def forward(self, model: CaptionModel, batch: Batch) -> Outcome:
        was_training = model.training
        # Without dropout, drawing and reading alike: what is read must be what was drawn from, or
        # the words that one network goes on drawing fall without end in the other.
        model.eval()
        try:
            return self._outcome(model, batch)
        finally:
            model.train(was_training)

    def _outcome(self, model: CaptionModel, batch: Batch) -> Outcome:
        if not batch.from_frozen:  # the frozen stages see the photos once, not twice
            frozen = model.encoder.frozen_features(batch.inputs)
            batch = replace(batch, inputs=frozen, from_frozen=True)
        with torch.no_grad():
            grid = model.encoder(batch.inputs, from_frozen=True)
        tokens, lengths = sample(
            model.decoder, grid, samples=self.samples, max_words=self.max_words
        )
        rewards = self._rewards(batch.photos, tokens)  # [B, samples]
        if self.baseline == "greedy":
            likeliest, _ = sample(
                model.decoder, grid, samples=1, max_words=self.max_words, greedy=True
            )
            baseline = self._rewards(batch.photos, likeliest)
        else:
            baseline = (rewards.sum(1, keepdim=True) - rewards) / (self.samples - 1)
        drawn, advantage = self._as_batch(batch, tokens, lengths, rewards - baseline)
        forced = _read(model, drawn)
        words = packed(drawn.targets, drawn.lengths)
        firsts, others = forced.logits.float().tensor_split([len(drawn.lengths)])
        # over the words that could be drawn, as they were
        logits = torch.cat([writable(firsts, first=True), writable(others, first=False)])
        log_probs = torch.log_softmax(logits, dim=-1).gather(1, words.unsqueeze(1)).squeeze(1)
        weights = packed(advantage.unsqueeze(1).expand_as(drawn.targets), drawn.lengths)
        total = -(weights * log_probs).mean()
        parts = {
            "total": total,
            "reward": rewards.mean(),
            "advantage": (rewards - baseline).square().mean().sqrt(),
            "cross_entropy": -log_probs.detach().mean(),
        }
        return parts, forced, drawn.lengths

    def _rewards(self, photos: Tensor, tokens: Tensor) -> Tensor:
        """CIDEr-D [B, n] of captions [B, n, T]."""
        count, samples, _ = tokens.shape
        captions = [
            [self.vocabulary.tokens[index] for index in caption if index != self.vocabulary.pad]
            for caption in tokens.flatten(0, 1).tolist()
        ]
        scores = self.reward.scores(np.repeat(photos.tolist(), samples).tolist(), captions)
        return torch.from_numpy(scores).float().view(count, samples).to(tokens.device)

    def _as_batch(
        self, batch: Batch, tokens: Tensor, lengths: Tensor, advantage: Tensor
    ) -> tuple[Batch, Tensor]:
        """The drawn captions as a batch to read, by falling length, and their advantages."""
        count, samples, _ = tokens.shape
        order = lengths.flatten().argsort(descending=True, stable=True)
        targets = tokens.flatten(0, 1)[order]
        start = torch.full_like(targets[:, :1], self.vocabulary.start)
        photo_index = torch.arange(count, device=tokens.device).repeat_interleave(samples)[order]
        drawn = Batch(
            inputs=batch.inputs,
            photos=batch.photos,
            photo_index=photo_index,
            tokens=torch.cat([start, targets[:, :-1]], dim=1),
            targets=targets,
            lengths=lengths.flatten()[order],
            from_frozen=batch.from_frozen,
        )
        return drawn, advantage.flatten()[order]


def _read(model: CaptionModel, batch: Batch) -> Forced:
    forced: Forced = model(
        batch.inputs,
        batch.photo_index,
        batch.tokens,
        batch.lengths,
        from_frozen=batch.from_frozen,
    )
    return forced


def build_objective(config: Config, dataset: CaptionDataset, vocabulary: Vocabulary) -> Objective:
    """Cross-entropy, or self-critical training where `self_critical.samples` asks for it."""
    own = config.self_critical
    if own.samples:
        references = [
            [[*tokenize(caption), END] for caption in photo.captions] for photo in dataset.photos
        ]
        return SelfCritical(
            CiderD(references),
            vocabulary,
            samples=own.samples,
            baseline=own.baseline,
            max_words=config.data.max_words,
        )
    hard = build_hard_loss(config) if config.attention.select == "hard" else None
    return CrossEntropy(config.loss, hard, samples=config.hard.samples)
