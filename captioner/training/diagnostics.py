"""Numbers that show whether attention and captions are alive."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from captioner.generation import Hypothesis
from captioner.models.decoders import TeacherForcingOutput

FLAT, FROZEN, SAME = 0.995, 0.01, 0.02


@torch.no_grad()
def attention_statistics(forced: TeacherForcingOutput, lengths: Tensor) -> dict[str, float]:
    """Attention of a training batch, as means over its words.

    attention_entropy: entropy of the maps over that of the uniform map, in [0, 1].
    attention_change: total variation distance between the maps of neighbouring words, in [0, 1].
    beta: the gate, where there is one.
    """
    words = float(lengths.sum())
    steps = torch.arange(forced.maps.shape[1])
    pairs = (steps[1:] < lengths.unsqueeze(1)).float().to(forced.maps.device)  # [N, T - 1]
    change = 0.5 * (forced.maps[:, 1:] - forced.maps[:, :-1]).abs().sum(-1)
    found = {
        "attention_entropy": float(forced.entropy.sum())
        / words
        / math.log(max(2, forced.maps.shape[2])),
        "attention_change": float((change * pairs).sum() / pairs.sum().clamp(min=1)),
    }
    if forced.beta is not None:
        found["beta"] = float(forced.beta.sum()) / words
    return found


def generated_attention_statistics(hypotheses: Sequence[Hypothesis]) -> dict[str, float]:
    """The same for captions that were written freely."""
    entropies, changes, betas = [], [], []
    for hypothesis in hypotheses:
        maps = hypothesis.maps.astype(np.float64)
        uniform = math.log(max(2, maps.shape[1]))
        entropies.append(-(maps * np.log(maps.clip(1e-12))).sum(1) / uniform)
        changes.append(0.5 * np.abs(np.diff(maps, axis=0)).sum(1))
        if hypothesis.beta is not None:
            betas.append(hypothesis.beta)
    found = {"attention_entropy": float(np.concatenate(entropies).mean())}
    change = np.concatenate(changes)
    if len(change):
        found["attention_change"] = float(change.mean())
    if betas:
        found["beta"] = float(np.concatenate(betas).mean())
    return found


def warnings(figures: dict[str, float], num_captions: int, *, attends: bool = True) -> list[str]:
    """One sentence for each sign of collapse in the figures of a validation.

    attends: the decoder has attention, whose maps should be neither flat nor frozen.
    """
    found = []
    if attends and figures["attention_entropy"] > FLAT:
        found.append(
            "attention has gone flat: its entropy is "
            f"{figures['attention_entropy']:.3f} of the uniform map's; "
            "lower loss.doubly_stochastic or the learning rate"
        )
    if attends and figures.get("attention_change", 1.0) < FROZEN:
        found.append(
            "attention is frozen: its maps hardly change from word to word "
            f"({figures['attention_change']:.4f}); train longer or lower loss.doubly_stochastic"
        )
    if num_captions >= 50 and figures["distinct_captions"] < SAME:
        found.append(
            f"the captions are nearly all the same ({figures['distinct_captions']:.1%} distinct); "
            "check the learning rate and that photos and captions belong together"
        )
    return found
