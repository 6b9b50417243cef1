"""The effect of attention on the words, as a term of the loss."""

from __future__ import annotations

import torch
from torch import Tensor

from captioner.data.batch import pack_by_step, unpack_by_step, word_mask
from captioner.models.decoders.base import TeacherForcingOutput
from captioner.runtime.device import at_least_float32


def attention_effect_loss(
    output: TeacherForcingOutput,
    at_random: TeacherForcingOutput,
    targets: Tensor,
    lengths: Tensor,
    *,
    effect: float,
    words: float | Tensor,
) -> tuple[Tensor, Tensor]:
    """Return how far captions are from losing `effect` nats a word where attention is random.

    Rao et al., 2021 (counterfactual attention) raise the effect of attention on a classifier's
    prediction, against random attention, without a limit. Here losing more counts as much as
    losing less, or the decoder learns to write nonsense as soon as a cell does not fit. No gradient
    reaches the words with the model's own attention, which have the cross-entropy.

    Args:
        targets, lengths, words: As in `Batch`.

    Returns:
        The sum over captions of |effect T - lost|, per word; and detached what is lost, in nats a
        word.
    """
    packed = pack_by_step(targets, lengths).unsqueeze(1)
    own, other = (
        torch.log_softmax(at_least_float32(each.logits), dim=-1).gather(1, packed).squeeze(1)
        for each in (output, at_random)
    )
    lost = unpack_by_step(own.detach() - other, lengths).sum(1)  # [N], nats
    wanted = effect * word_mask(lengths).sum(1).to(lost.device, lost.dtype)
    return (wanted - lost).abs().sum() / words, lost.detach().sum() / words
