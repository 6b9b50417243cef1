"""Statistics that show whether attention and captions are alive."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from captioner.generation import Hypothesis

FLAT_ENTROPY = 0.995  # of the uniform map's; above it attention says nothing
FROZEN_CHANGE = 0.01  # total variation distance between neighbouring words
SAME_CAPTIONS = 0.02  # share of distinct captions


def generated_attention_statistics(hypotheses: Sequence[Hypothesis]) -> dict[str, float]:
    """Return the `attention_statistics` of generated captions."""
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
