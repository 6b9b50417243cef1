"""Training on given captions, word by word: equation 14, and equation 12 for hard attention."""

from __future__ import annotations

from dataclasses import replace

from captioner.config import Config, LossConfig
from captioner.data.batch import Batch
from captioner.models.model import CaptionModel
from captioner.training.attention_effect import attention_effect_loss
from captioner.training.distillation import Teachers, load_teachers
from captioner.training.losses import attention_statistics, caption_losses
from captioner.training.reinforce import Reinforce, build_reinforce, repeat_captions
from captioner.training.task import LossOutput, TaskData, TrainingTask


class CrossEntropyTask(TrainingTask):
    """Minimise the cross-entropy of the captions and the terms that the settings add to it.

    Args:
        reinforce: Terms of equation 12 that train hard attention; None for soft attention.
        teachers: Trained models whose word probabilities are learned in addition.
    """

    def __init__(
        self,
        model: CaptionModel,
        loss: LossConfig,
        *,
        reinforce: Reinforce | None = None,
        teachers: Teachers | None = None,
    ) -> None:
        super().__init__(model)
        self.loss = loss
        self.reinforce = reinforce
        self.teachers = teachers

    @classmethod
    def is_asked_for(cls, config: Config) -> bool:
        return True

    @classmethod
    def from_data(cls, data: TaskData) -> CrossEntropyTask:
        config = data.config
        hard, teachers = config.attention.select == "hard", config.loss.teachers
        return cls(
            data.model,
            config.loss,
            reinforce=build_reinforce(config) if hard else None,
            teachers=load_teachers(data) if teachers else None,
        )

    def forward(self, batch: Batch) -> LossOutput:
        """Return the loss of a batch, with the metrics of its terms and of its attention."""
        repeated, samples = batch, 1
        if self.reinforce is not None:
            samples = self.reinforce.samples
            repeated = repeat_captions(batch, samples)
        if not len(batch):  # other processes have captions
            zero = self.zero_loss()
            if self.reinforce is not None:
                self.reinforce.baseline.observe(zero.detach(), repeated.words)
            return LossOutput(zero, {"total": zero.detach()})
        grid, seeds = self.model.encoder(batch.inputs, from_frozen=batch.from_frozen), None
        if self.reinforce is not None:
            grid, seeds = replace(grid, seeds=batch.image_seeds), repeated.seeds
        teacher_targets = None if self.teachers is None else self.teachers(batch).repeated(samples)
        targets, lengths = repeated.targets, repeated.lengths
        words, captions = repeated.words, repeated.captions
        given = (repeated.image_index, repeated.tokens, lengths)
        output = self.model(grid, *given, seeds)
        metrics = caption_losses(
            output,
            targets,
            lengths,
            self.loss,
            reinforce=self.reinforce,
            weights=repeated.weights,
            teacher_targets=teacher_targets,
            words=words,
            captions=captions,
        )
        metrics |= attention_statistics(output, words, captions)
        total = metrics["total"]
        if self.loss.attention_effect:
            seeds = None if seeds is None else seeds + 1
            at_random = self.model(replace(grid, at_random=True), *given, seeds)
            effect_loss, effect_metrics = attention_effect_loss(
                output, at_random, targets, lengths, effect=self.loss.attention_effect, words=words
            )
            total = total + self.loss.attention_effect_weight * effect_loss
            metrics |= effect_metrics
        return LossOutput(total, {**metrics, "total": total.detach()})
