"""Score given captions: the probability and the attention of each of their words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from captioner.generation.beam_search import END, PAD, START, Hypothesis
from captioner.models.decoders.base import Decoder
from captioner.types import Grid


def score(
    decoder: Decoder, grid: Grid, tokens: Sequence[int], *, times: int = 1
) -> list[Hypothesis]:
    """Score the same caption for each image of the grid.

    Args:
        decoder: In evaluation mode.
        grid: Of B images.
        tokens: T word indices, without start and end.
        times: Passes over the caption for each image; they differ where hard attention samples.

    Returns:
        B x times hypotheses, those of one image next to each other.
    """
    found = score_captions(decoder, grid, [[tokens] * times] * len(grid.features))
    return [hypothesis for image in found for hypothesis in image]


@torch.inference_mode()
def score_captions(
    decoder: Decoder, grid: Grid, captions: Sequence[Sequence[Sequence[int]]]
) -> list[list[Hypothesis]]:
    """Score several captions of each image: the hypotheses that a search would have had for them.

    Args:
        decoder: In evaluation mode.
        grid: Of B images.
        captions: [B][K], each of T word indices, without start and end; lengths may differ.

    Returns:
        [B][K] hypotheses, whose score is the total log-probability, end token included.
    """
    images = len(captions)
    beams = len(captions[0]) if images else 0
    if not beams:
        return [[] for _ in captions]
    texts = [list(text) for image in captions for text in image]
    steps = max(map(len, texts)) + 1
    targets = torch.full((images * beams, steps), PAD)
    for row, text in enumerate(texts):
        targets[row, : len(text) + 1] = torch.tensor([*text, END])
    targets = targets.view(images, beams, steps).to(grid.features.device)
    inputs = torch.cat([torch.full_like(targets[..., :1], START), targets[..., :-1]], dim=-1)
    memory = decoder.prepare(grid)
    state = decoder.start(memory, beams)
    log_probs, outputs = [], []
    for step in range(steps):
        logits, attended, state = decoder.step(inputs[..., step], state, memory)
        chosen = torch.log_softmax(logits.float(), dim=-1).gather(-1, targets[..., step, None])
        log_probs.append(chosen.flatten())
        outputs.append(attended)
    chosen_log_probs = torch.stack(log_probs, dim=1).cpu().numpy()  # [B * K, T + 1]

    def per_caption(name: str) -> np.ndarray | None:
        """[B * K, T, ...] of an attribute of the attention, without the end token's step."""
        values: list[Tensor | None] = [getattr(attended, name) for attended in outputs[:-1]]
        found = [value.flatten(0, 1) for value in values if value is not None]
        if not found:
            return None
        stacked = torch.stack(found, dim=1)
        return (stacked.float() if stacked.is_floating_point() else stacked).cpu().numpy()

    maps, beta, cells, heads = map(per_caption, ("weights", "beta", "cells", "heads"))
    if maps is None:  # no words: the end at once
        maps = np.zeros((images * beams, 0, grid.features.shape[1]), dtype=np.float32)

    def hypothesis(row: int) -> Hypothesis:
        words = len(texts[row])
        return Hypothesis(
            tokens=texts[row],
            log_probs=chosen_log_probs[row, :words],
            end_log_prob=float(chosen_log_probs[row, words]),
            maps=maps[row, :words],
            beta=None if beta is None else beta[row, :words],
            cells=None if cells is None else cells[row, :words],
            score=float(chosen_log_probs[row, : words + 1].sum()),
            heads=None if heads is None else heads[row, :words],
        )

    return [[hypothesis(image * beams + beam) for beam in range(beams)] for image in range(images)]
