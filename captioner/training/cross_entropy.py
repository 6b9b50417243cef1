"""Training on given captions, word by word: equation 14, and equation 12 for hard attention."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from captioner.config.settings import Config, LossConfig
from captioner.data.batch import Batch, pack_by_step, unpack_by_step, word_mask
from captioner.data.sources import SourceImages
from captioner.data.vocabulary import Vocabulary
from captioner.models.decoders.base import TeacherForcingOutput
from captioner.models.model import CaptionModel
from captioner.runtime.device import at_least_float32
from captioner.training.distillation import Teachers, TeacherTargets, load_teachers
from captioner.training.reinforce import Reinforce
from captioner.training.task import LossOutput, TrainingTask


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
    def from_recipe(
        cls, config: Config, model: CaptionModel, vocabulary: Vocabulary, images: SourceImages
    ) -> CrossEntropyTask:
        reinforce = Reinforce(config.hard) if config.attention.select == "hard" else None
        teachers = load_teachers(config, model, vocabulary) if config.loss.teachers else None
        return cls(model, config.loss, reinforce=reinforce, teachers=teachers)

    def forward(self, batch: Batch) -> LossOutput:
        """Return the loss of a batch, with the metrics of its terms and of its attention."""
        reinforce = self.reinforce
        samples = 1 if reinforce is None else reinforce.hard.samples
        repeated = batch.repeated(samples)
        if not len(batch):  # other processes have captions
            empty = self.empty_output()
            if reinforce is not None and reinforce.baseline is not None:
                reinforce.baseline.observe(empty.loss.detach(), repeated.words)
            return empty
        grid, seeds = self.model.encoder(batch.inputs, from_frozen=batch.from_frozen), None
        if reinforce is not None:
            grid, seeds = replace(grid, seeds=batch.image_seeds), repeated.seeds
        teacher_targets = None if self.teachers is None else self.teachers(batch).repeated(samples)
        output = self.model(grid, repeated, seeds)
        metrics = caption_losses(output, repeated, self.loss, reinforce, teacher_targets)
        metrics |= attention_statistics(output, repeated.words, repeated.captions)
        total = metrics["total"]
        if self.loss.attention_effect:
            seeds = None if seeds is None else seeds + 1
            at_random = self.model(replace(grid, at_random=True), repeated, seeds)
            effect_loss, metrics["random_cell_loss"] = attention_effect_loss(
                output, at_random, repeated, self.loss.attention_effect
            )
            total = total + self.loss.attention_effect_weight * effect_loss
        return LossOutput(total, {**metrics, "total": total.detach()})


def caption_losses(
    output: TeacherForcingOutput,
    batch: Batch,
    loss: LossConfig,
    reinforce: Reinforce | None = None,
    teacher_targets: TeacherTargets | None = None,
) -> dict[str, Tensor]:
    """Return the loss of a batch: sums over each caption (equation 14) per word of the batch.

    The paper sums the words of a caption and averages over captions. Dividing every term by the
    words of the batch instead keeps their ratios and makes batches comparable.

    Args:
        batch: The captions; its weights are of what is minimised of the cross-entropy.
        reinforce: Terms of equation 12 for sampled attention.
        teacher_targets: Predictions of teachers (Hinton et al., 2015).

    Returns:
        `total`, with its graph; and detached `cross_entropy` (per word, of the captions alone),
        `smoothed` (what is minimised of it), `doubly_stochastic` (per caption, before lambda), with
        teachers' attention `attention_divergence` (nats per word), and the metrics of `reinforce`.
    """
    lengths, words, captions = batch.lengths, batch.words, batch.captions
    packed = pack_by_step(batch.targets, lengths)  # [M]
    dtype = torch.promote_types(output.logits.dtype, torch.float32)
    log_probs = torch.log_softmax(output.logits, dim=-1, dtype=dtype)
    word_log_probs = log_probs.gather(1, packed.unsqueeze(1)).squeeze(1)
    losses = -word_log_probs
    # Without smoothing, its gradient of zeros would cost as much as that of the words.
    if smoothing := loss.label_smoothing:
        losses = (1 - smoothing) * losses - smoothing * log_probs.mean(-1)
    if teacher_targets is not None:
        from_teachers = (teacher_targets.probs * log_probs).sum(-1)
        losses = (1 - loss.distillation) * losses - loss.distillation * from_teachers
    if batch.weights is not None:
        losses = losses * pack_by_step(batch.weights.unsqueeze(1).expand_as(batch.targets), lengths)
    # Summed over the cells of a caption. (The original code averages over them and sums over the
    # batch, which makes its lambda N / L of this one.)
    penalties = (1.0 - output.maps.sum(1)).square().sum(1)
    if lengths.dim() == 2:  # a mask: padding and captions that fill up a batch count nothing
        is_word = pack_by_step(lengths, lengths)
        losses, word_log_probs = losses * is_word, word_log_probs * is_word
        penalties = penalties * lengths[:, 0]
    smoothed = losses.sum() / words
    penalty = penalties.sum() / captions
    total = smoothed + loss.doubly_stochastic * (captions / words) * penalty
    metrics: dict[str, Tensor] = {}
    if teacher_targets is not None and teacher_targets.maps is not None:
        divergence = teacher_targets.attention_divergence(output.maps).sum() / words
        total = total + loss.attention_distillation * divergence
        metrics["attention_divergence"] = divergence.detach()
    if reinforce is not None:
        word_rewards = -losses if reinforce.hard.reward == "minimised" else word_log_probs
        reinforce_loss, reinforce_metrics = reinforce(output, word_rewards, batch)
        total = total + reinforce_loss
        metrics |= reinforce_metrics
    return {
        "total": total,
        "cross_entropy": -word_log_probs.sum().detach() / words,
        "smoothed": smoothed.detach(),
        "doubly_stochastic": penalty.detach(),
        **metrics,
    }


def attention_effect_loss(
    output: TeacherForcingOutput, at_random: TeacherForcingOutput, batch: Batch, effect: float
) -> tuple[Tensor, Tensor]:
    """Return how far captions are from losing `effect` nats a word where attention is random.

    Rao et al., 2021 (counterfactual attention) raise the effect of attention on a classifier's
    prediction, against random attention, without a limit. Here losing more counts as much as
    losing less, or the decoder learns to write nonsense as soon as a cell does not fit. No gradient
    reaches the words with the model's own attention, which have the cross-entropy.

    Returns:
        The sum over captions of |effect T - lost|, per word; and detached what is lost, in nats a
        word.
    """
    packed = pack_by_step(batch.targets, batch.lengths).unsqueeze(1)
    own, other = (
        torch.log_softmax(at_least_float32(each.logits), dim=-1).gather(1, packed).squeeze(1)
        for each in (output, at_random)
    )
    lost = unpack_by_step(own.detach() - other, batch.lengths).sum(1)  # [N], nats
    wanted = effect * word_mask(batch.lengths).sum(1).to(lost.device, lost.dtype)
    return (wanted - lost).abs().sum() / batch.words, lost.detach().sum() / batch.words


@torch.no_grad()
def attention_statistics(
    output: TeacherForcingOutput, words: float | Tensor, captions: float | Tensor
) -> dict[str, Tensor]:
    """Return metrics that show whether attention is alive: means over the words of a batch.

    Args:
        words, captions: As in `Batch`; a caption of T words has T - 1 pairs of neighbouring words.

    Returns:
        attention_entropy: Entropy of the maps over that of the uniform map, in [0, 1].
        attention_change: Total variation distance between neighbouring words' maps, in [0, 1].
        beta: The gate, where there is one.
    """
    pairs = words - captions
    pairs = pairs + (pairs == 0)  # without a pair there is no change
    maps, uniform = output.maps, math.log(max(2, output.maps.shape[2]))
    running = maps[:, 1:].any(-1)  # [N, T - 1]; a map is zero where a caption has ended
    change = 0.5 * (maps[:, 1:] - maps[:, :-1]).abs().sum(-1) * running
    statistics = {
        "attention_entropy": output.entropy.sum() / (uniform * words),
        "attention_change": change.sum() / pairs,
    }
    if output.beta is not None:
        statistics["beta"] = output.beta.sum() / words
    return statistics
