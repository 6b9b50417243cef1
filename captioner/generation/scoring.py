"""Score given captions: the probability and the attention of each of their words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from array_api_compat import array_namespace

from captioner.generation.arrays import (
    Array,
    StepDecoder,
    log_softmax,
    to_numpy,
    without_gradients,
)
from captioner.generation.beam_search import END, PAD, START, Hypothesis
from captioner.types import AttentionOutput, Grid


def force_decode(
    decoder: StepDecoder,
    grid: Grid,
    captions: Sequence[Sequence[Sequence[int]]],
    *,
    max_words: int | None = None,
) -> list[list[Hypothesis]]:
    """Score several captions of each image; return them as the hypotheses of a search.

    Args:
        captions: [B][K], each of T word indices, without start and end; lengths may differ.
        max_words: Captions of this many words were cut off there, as by the search: their end is
            not read, for which a decoder may have no position. None: all have ended.

    Returns:
        [B][K] hypotheses, whose score is the total log-probability, the end token's included.
    """
    images = len(captions)
    beams = len(captions[0]) if images else 0
    if not beams:
        return [[] for _ in captions]
    texts = [list(text) for image in captions for text in image]
    longest = max(map(len, texts))
    scored = [text if len(text) == max_words else [*text, END] for text in texts]
    steps = max(map(len, scored))
    written = np.full((images * beams, steps), PAD)
    for row, text in enumerate(scored):
        written[row, : len(text)] = text
    outputs: list[AttentionOutput] = []
    with without_gradients(grid.features):
        xp = array_namespace(grid.features)
        targets = xp.asarray(written.reshape(images, beams, steps), device=grid.features.device)
        inputs = xp.concat([xp.full_like(targets[..., :1], START), targets[..., :-1]], axis=-1)
        memory = decoder.prepare(grid)
        state = decoder.start(memory, beams)
        log_probs = []
        for step in range(steps):
            logits, attended, state = decoder.step(inputs[..., step], state, memory)
            target = targets[..., step, None]
            log_probs.append(xp.take_along_axis(log_softmax(logits), target, axis=-1))
            outputs.append(attended)
        joined = to_numpy(xp.concat(log_probs, axis=-1))
    chosen_log_probs = joined.reshape(images * beams, steps)

    def per_caption(name: str) -> np.ndarray | None:
        """Return an attribute of the attention to each word, [B * K, T, ...]; None if absent."""
        values: list[Array | None] = [getattr(attended, name) for attended in outputs[:longest]]
        found = [value for value in values if value is not None]
        if not found:
            return None
        stacked = xp.stack(found, axis=2)
        if xp.isdtype(stacked.dtype, "real floating"):
            stacked = xp.astype(stacked, xp.float32)
        return to_numpy(stacked).reshape(images * beams, *stacked.shape[2:])

    maps, beta, cells, heads = map(per_caption, ("weights", "beta", "cells", "heads"))
    if maps is None:  # no words: the end at once
        maps = np.zeros((images * beams, 0, grid.features.shape[1]), dtype=np.float32)

    def hypothesis(row: int) -> Hypothesis:
        words, steps = len(texts[row]), len(scored[row])
        return Hypothesis(
            tokens=texts[row],
            log_probs=chosen_log_probs[row, :words],
            end_log_prob=float(chosen_log_probs[row, words]) if steps > words else None,
            maps=maps[row, :words],
            beta=None if beta is None else beta[row, :words],
            cells=None if cells is None else cells[row, :words],
            score=float(chosen_log_probs[row, :steps].sum()),
            heads=None if heads is None else heads[row, :words],
        )

    return [[hypothesis(image * beams + beam) for beam in range(beams)] for image in range(images)]
