"""Statistics that show whether attention and captions are alive."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from captioner.generation import Hypothesis
from captioner.models.decoders import TeacherForcingOutput
from captioner.runtime.distributed import sum_over_processes

FLAT_ENTROPY = 0.995  # of the uniform map's; above it attention says nothing
FROZEN_CHANGE = 0.01  # total variation distance between neighbouring words
SAME_CAPTIONS = 0.02  # share of distinct captions


@torch.no_grad()
def attention_statistics(output: TeacherForcingOutput | None, lengths: Tensor) -> dict[str, float]:
    """Return statistics of a training batch's attention, as means over its words.

    All processes of a run call it together, and get the means over all of their words.

    Args:
        output: Teacher-forced output; None where this process had no caption.
        lengths: [N] on the CPU.

    Returns:
        attention_entropy: Entropy of the maps over that of the uniform map, in [0, 1].
        attention_change: Total variation distance between neighbouring words' maps, in [0, 1].
        beta: The gate, where there is one.
    """
    entropy = changes = num_pairs = beta = words_with_beta = 0.0
    if output is not None:
        steps = torch.arange(output.maps.shape[1])
        pairs = (steps[1:] < lengths.unsqueeze(1)).float().to(output.maps.device)  # [N, T - 1]
        change = 0.5 * (output.maps[:, 1:] - output.maps[:, :-1]).abs().sum(-1)
        uniform = math.log(max(2, output.maps.shape[2]))
        entropy = float(output.entropy.sum()) / uniform
        changes, num_pairs = float((change * pairs).sum()), float(pairs.sum())
        if output.beta is not None:
            beta, words_with_beta = float(output.beta.sum()), float(lengths.sum())
    entropy, changes, beta, words, num_pairs, words_with_beta = sum_over_processes(
        [entropy, changes, beta, float(lengths.sum()), num_pairs, words_with_beta]
    )
    statistics = {
        "attention_entropy": entropy / words,
        "attention_change": changes / max(1.0, num_pairs),
    }
    if words_with_beta:
        statistics["beta"] = beta / words_with_beta
    return statistics


def generated_attention_statistics(hypotheses: Sequence[Hypothesis]) -> dict[str, float]:
    """Return the same statistics for generated captions."""
    entropies, changes, betas = [], [], []
    for hypothesis in hypotheses:
        maps = hypothesis.maps.astype(np.float64)
        uniform = math.log(max(2, maps.shape[1]))
        entropies.append(-(maps * np.log(maps.clip(1e-12))).sum(1) / uniform)
        changes.append(0.5 * np.abs(np.diff(maps, axis=0)).sum(1))
        if hypothesis.beta is not None:
            betas.append(hypothesis.beta)
    statistics = {"attention_entropy": float(np.concatenate(entropies).mean())}
    change = np.concatenate(changes)
    if len(change):
        statistics["attention_change"] = float(change.mean())
    if betas:
        statistics["beta"] = float(np.concatenate(betas).mean())
    return statistics


def warnings(figures: dict[str, float], num_captions: int, *, attends: bool = True) -> list[str]:
    """Return one sentence for each sign of collapse in the figures of a validation.

    Args:
        figures: Of the validation.
        num_captions: Captions that they were computed from.
        attends: Whether the decoder has attention, whose maps should be neither flat nor frozen.
    """
    sentences = []
    if attends and figures["attention_entropy"] > FLAT_ENTROPY:
        sentences.append(
            "attention has gone flat: its entropy is "
            f"{figures['attention_entropy']:.3f} of the uniform map's; "
            "lower loss.doubly_stochastic or the learning rate"
        )
    if attends and figures.get("attention_change", 1.0) < FROZEN_CHANGE:
        sentences.append(
            "attention is frozen: its maps hardly change from word to word "
            f"({figures['attention_change']:.4f}); train longer or lower loss.doubly_stochastic"
        )
    if num_captions >= 50 and figures["distinct_captions"] < SAME_CAPTIONS:
        sentences.append(
            f"the captions are nearly all the same ({figures['distinct_captions']:.1%} distinct); "
            "check the learning rate and that photos and captions belong together"
        )
    return sentences
