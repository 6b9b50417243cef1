"""What training minimises, as named parts."""

from __future__ import annotations

import torch
from torch import Tensor

from captioner.models.decoders import TeacherForcingOutput, pack_by_step
from captioner.training.reinforce import HardAttentionLoss


def doubly_stochastic_penalty(maps: Tensor) -> Tensor:
    """Sum over cells of (1 - sum over words of alpha)^2, [N] (equation 14, before lambda).

    maps: [N, T, L], zero where a caption has ended, so that padding adds nothing.
    """
    return (1.0 - maps.sum(1)).square().sum(1)


def caption_losses(
    forced: TeacherForcingOutput,
    targets: Tensor,
    lengths: Tensor,
    *,
    doubly_stochastic: float,
    label_smoothing: float = 0.0,
    hard: HardAttentionLoss | None = None,
    weights: Tensor | None = None,
    soft_targets: Tensor | None = None,
    distillation: float = 0.0,
) -> dict[str, Tensor]:
    """Loss of a batch: sums over each caption, as in equation 14, divided by the number of words.

    The paper sums the words of a caption and averages over captions. Dividing both parts by the
    words of the batch instead keeps their ratio and makes the loss comparable between batches.

    targets: [N, T]; lengths: [N], falling. weights: [N], of the captions in what is minimised of
    the cross-entropy; None weighs all alike. soft_targets: [M, V], teachers' probabilities of the
    words; the target is then `distillation` times these plus the rest times the caption's own word.
    Returns `total`, `cross_entropy` (a word, of the captions alone), `smoothed` (what is minimised
    of it), `doubly_stochastic` (a caption, before lambda), and the parts of `hard` where there is
    one.
    """
    words = pack_by_step(targets, lengths)
    logits = forced.logits
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    log_probs = torch.log_softmax(logits, dim=-1)
    word_log_probs = log_probs.gather(1, words.unsqueeze(1)).squeeze(1)
    cross_entropy = -word_log_probs.mean()
    of_words = -word_log_probs
    if label_smoothing:  # else its gradient of zeros would cost as much as that of the words
        of_words = (1 - label_smoothing) * of_words - label_smoothing * log_probs.mean(-1)
    if soft_targets is not None:
        of_words = (1 - distillation) * of_words - distillation * (soft_targets * log_probs).sum(-1)
    if weights is not None:
        of_words = of_words * pack_by_step(weights.unsqueeze(1).expand_as(targets), lengths)
    smoothed = of_words.mean()
    penalty = doubly_stochastic_penalty(forced.maps).mean()
    share = len(lengths) / len(words)  # from a caption's sum to the mean over words
    total = smoothed + doubly_stochastic * share * penalty
    looked: dict[str, Tensor] = {}
    if hard is not None:
        looking, looked = hard(forced, word_log_probs, lengths)
        total = total + looking
    return {
        "total": total,
        "cross_entropy": cross_entropy.detach(),
        "smoothed": smoothed.detach(),
        "doubly_stochastic": penalty.detach(),
        **looked,
    }
