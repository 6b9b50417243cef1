"""The loss of teacher-forced captions, as named terms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from captioner.config import LossConfig
from captioner.errors import ConfigError
from captioner.models.decoders.base import TeacherForcingOutput

if TYPE_CHECKING:
    from captioner.training.distillation import TeacherTargets
    from captioner.training.reinforce import Reinforce


def doubly_stochastic_penalty(maps: Tensor) -> Tensor:
    """Return the penalty of equation 14 for each caption, before lambda.

    It is the sum over cells of (1 - sum over words of alpha)^2. (The original code averages over
    the cells and sums over the batch, which makes its lambda N / L of this one.)

    Args:
        maps: [N, T, L], zero where a caption has ended, so that padding adds nothing.

    Returns:
        [N].
    """
    return (1.0 - maps.sum(1)).square().sum(1)


def caption_losses(
    output: TeacherForcingOutput,
    targets: Tensor,
    lengths: Tensor,
    loss: LossConfig,
    *,
    reinforce: Reinforce | None = None,
    weights: Tensor | None = None,
    taught: TeacherTargets | None = None,
    words: float | None = None,
    captions: float | None = None,
) -> dict[str, Tensor]:
    """Return the loss of a batch: sums over each caption (equation 14) per word of the batch.

    The paper sums the words of a caption and averages over captions. Dividing every term by the
    words of the batch instead keeps their ratios and makes batches comparable.

    Args:
        targets, lengths, weights, words, captions: As in `Batch`; weights are of what is minimised
            of the cross-entropy.
        loss: Weights of the terms.
        reinforce: Terms of equation 12 for sampled attention, or None.
        taught: Predictions of teachers (Hinton et al., 2015), or None.

    Returns:
        `total`, with its graph; and detached `cross_entropy` (per word, of the captions alone),
        `smoothed` (what is minimised of it), `doubly_stochastic` (per caption, before lambda), with
        teachers' attention `attention_divergence` (Kullback-Leibler, nats per word), and the
        metrics of `reinforce`.

    Raises:
        ConfigError: The teachers' grid has another number of cells than the model's.
    """
    packed = pack_padded_sequence(targets, lengths, batch_first=True).data  # [M], by step
    words = len(packed) if words is None else words
    captions = len(lengths) if captions is None else captions
    at_least_float32 = torch.promote_types(output.logits.dtype, torch.float32)
    log_probs = torch.log_softmax(output.logits, dim=-1, dtype=at_least_float32)
    word_log_probs = log_probs.gather(1, packed.unsqueeze(1)).squeeze(1)
    losses = -word_log_probs
    # Without smoothing, its gradient of zeros would cost as much as that of the words.
    if smoothing := loss.label_smoothing:
        losses = (1 - smoothing) * losses - smoothing * log_probs.mean(-1)
    if taught is not None:
        from_teachers = (taught.probs * log_probs).sum(-1)
        losses = (1 - loss.distillation) * losses - loss.distillation * from_teachers
    if weights is not None:
        by_word = weights.unsqueeze(1).expand_as(targets)
        losses = losses * pack_padded_sequence(by_word, lengths, batch_first=True).data
    smoothed = losses.sum() / words
    penalty = doubly_stochastic_penalty(output.maps).sum() / captions
    total = smoothed + loss.doubly_stochastic * (captions / words) * penalty
    metrics: dict[str, Tensor] = {}
    if taught is not None and taught.maps is not None:
        divergence = _attention_divergence(output.maps, taught.maps).sum() / words
        total = total + loss.attention_distillation * divergence
        metrics["attention_divergence"] = divergence.detach()
    if reinforce is not None:
        reinforce_loss, reinforce_metrics = reinforce(output, word_log_probs, lengths, words)
        total = total + reinforce_loss
        metrics |= reinforce_metrics
    return {
        "total": total,
        "cross_entropy": -word_log_probs.sum().detach() / words,
        "smoothed": smoothed.detach(),
        "doubly_stochastic": penalty.detach(),
        **metrics,
    }


def _attention_divergence(maps: Tensor, wanted: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence [N, T] of maps from wanted ones, [N, T, L], in nats.

    Both are zero where a caption has ended, and so is the result.
    """
    if maps.shape != wanted.shape:
        raise ConfigError(
            f"loss.attention_distillation: a teacher attends to {wanted.shape[-1]} cells and this "
            f"model to {maps.shape[-1]}; use 0, or a teacher with the same grid"
        )
    smallest = torch.finfo(maps.dtype).tiny
    ratio = wanted.clamp_min(smallest).log() - maps.clamp_min(smallest).log()
    return (wanted * ratio).sum(-1)
