"""Score given captions: the probability and the attention of each of their words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from captioner.generation.beam_search import END, START, Hypothesis
from captioner.models.decoders.base import Decoder
from captioner.types import Grid


@torch.inference_mode()
def score(
    decoder: Decoder, grid: Grid, tokens: Sequence[int], *, times: int = 1
) -> list[Hypothesis]:
    """The hypotheses that a search would have had for these words of each photo.

    tokens: T word indices, without start and end; grid: of B photos. times: readings of the same
    words a photo, which differ where hard attention samples its cells.

    Returns:
        B x times hypotheses, those of one photo side by side.
    """
    photos = len(grid.features)
    memory = decoder.prepare(grid)
    state = decoder.start(memory, times)
    log_probs, attended_words = [], []
    for read, target in zip([START, *tokens], [*tokens, END], strict=True):
        words = torch.full((photos, times), read, device=grid.features.device)
        logits, attended, state = decoder.step(words, state, memory)
        log_probs.append(torch.log_softmax(logits.float(), dim=-1)[..., target].flatten())
        attended_words.append(attended)
    chosen = torch.stack(log_probs, dim=1).cpu().numpy()  # [B * times, T + 1]

    def looked(name: str) -> np.ndarray | None:
        """[B * times, T, ...]: of the words, not of the end."""
        values: list[Tensor | None] = [getattr(attended, name) for attended in attended_words[:-1]]
        found = [value.flatten(0, 1) for value in values if value is not None]
        if not found:
            return None
        stacked = torch.stack(found, dim=1)
        return (stacked.float() if stacked.is_floating_point() else stacked).cpu().numpy()

    maps, beta, cells, heads = map(looked, ("weights", "beta", "cells", "heads"))
    if maps is None:  # no words: the end at once
        maps = np.zeros((photos * times, 0, grid.features.shape[1]), dtype=np.float32)
    return [
        Hypothesis(
            tokens=list(tokens),
            log_probs=chosen[reading, :-1],
            end_log_prob=float(chosen[reading, -1]),
            maps=maps[reading],
            beta=None if beta is None else beta[reading],
            cells=None if cells is None else cells[reading],
            score=float(chosen[reading].sum()),
            heads=None if heads is None else heads[reading],
        )
        for reading in range(photos * times)
    ]
