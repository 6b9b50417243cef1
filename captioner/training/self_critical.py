"""Training on captions that the model draws itself."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from captioner.data.batch import Batch
from captioner.data.vocabulary import Vocabulary
from captioner.evaluation.cider import CiderD
from captioner.generation import sample, writable
from captioner.models.build import CaptionModel
from captioner.models.decoders import TeacherForcingOutput, pack_by_step
from captioner.training.task import LossOutput, TrainingTask
from captioner.types import Grid


class SelfCritical(TrainingTask):
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

    def forward(self, model: CaptionModel, batch: Batch) -> LossOutput:
        # What is read must be what was drawn from, or the words that one network goes on drawing
        # fall without end in the other: one grid for both, with the encoder's dropout, and a
        # decoder without.
        grid = model.encoder(batch.inputs, from_frozen=batch.from_frozen)
        was_training = model.decoder.training
        model.decoder.eval()
        try:
            return self._outcome(model, batch, grid)
        finally:
            model.decoder.train(was_training)

    def _outcome(self, model: CaptionModel, batch: Batch, grid: Grid) -> LossOutput:
        tokens, lengths = sample(
            model.decoder, grid, samples=self.samples, max_words=self.max_words
        )
        rewards = self._rewards(batch.images, tokens)  # [B, samples]
        if self.baseline == "greedy":
            likeliest, _ = sample(
                model.decoder, grid, samples=1, max_words=self.max_words, greedy=True
            )
            baseline = self._rewards(batch.images, likeliest)
        else:
            baseline = (rewards.sum(1, keepdim=True) - rewards) / (self.samples - 1)
        drawn, advantage = self._as_batch(batch, tokens, lengths, rewards - baseline)
        forced: TeacherForcingOutput = model(grid, drawn.image_index, drawn.tokens, drawn.lengths)
        words = pack_by_step(drawn.targets, drawn.lengths)
        firsts, others = forced.logits.float().tensor_split([len(drawn.lengths)])
        # over the words that could be drawn, as they were
        logits = torch.cat([writable(firsts, first=True), writable(others, first=False)])
        log_probs = torch.log_softmax(logits, dim=-1).gather(1, words.unsqueeze(1)).squeeze(1)
        weights = pack_by_step(advantage.unsqueeze(1).expand_as(drawn.targets), drawn.lengths)
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
        falling, order = lengths.flatten().cpu().sort(descending=True, stable=True)
        order = order.to(tokens.device)
        targets = tokens.flatten(0, 1)[order]
        start = torch.full_like(targets[:, :1], self.vocabulary.start)
        image_index = torch.arange(count, device=tokens.device).repeat_interleave(samples)[order]
        drawn = Batch(
            inputs=batch.inputs,
            images=batch.images,
            image_index=image_index,
            tokens=torch.cat([start, targets[:, :-1]], dim=1),
            targets=targets,
            lengths=falling,
            from_frozen=batch.from_frozen,
        )
        return drawn, advantage.flatten()[order]
