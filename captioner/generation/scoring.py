"""Score given captions: the probability and the attention of each of their words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace

from captioner.generation.arrays import Array, gather, log_softmax, to_numpy, without_gradients
from captioner.generation.beam_search import ATTENDED, END, PAD, START, Hypothesis
from captioner.types import Grid

if TYPE_CHECKING:
    from captioner.models.decoders.base import StepDecoder


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
        max_words: Captions of this many words were cut off there: their end is not read, for which
            a decoder may have no position. None: all have ended.

    Returns:
        [B][K] hypotheses, whose score is the total log-probability, the end token's included.
    """
    images, beams = len(captions), len(captions[0])
    texts = [list(text) for image in captions for text in image]
    scored = [text if len(text) == max_words else [*text, END] for text in texts]
    steps = max(map(len, scored))
    written = np.full((images * beams, steps), PAD)
    for row, text in enumerate(scored):
        written[row, : len(text)] = text
    values: dict[str, list[Array]] = {name: [] for name in ("log_probs", *ATTENDED)}
    with without_gradients(grid.features):
        xp = array_namespace(grid.features)
        targets = xp.asarray(written.reshape(images, beams, steps), device=grid.features.device)
        inputs = xp.concat([xp.full_like(targets[..., :1], START), targets[..., :-1]], axis=-1)
        memory = decoder.prepare(grid)
        state = decoder.start(memory, beams)
        for step in range(steps):
            logits, attended, state = decoder.step(inputs[..., step], state, memory)
            log_probs = gather(log_softmax(logits), targets[..., step, None])
            values["log_probs"].append(log_probs[..., 0])
            for name, attribute in ATTENDED.items():
                values[name].append(getattr(attended, attribute))

    def joined(steps: list[Array]) -> Any:
        """Join the values of all steps to [B * K, T, ...]; None if they are."""
        if steps[0] is None:
            return None
        stacked = to_numpy(xp.stack(steps, axis=2))
        return stacked.reshape(-1, *stacked.shape[2:])

    found = {name: joined(steps) for name, steps in values.items()}

    def hypothesis(row: int) -> Hypothesis:
        words, all_log_probs = len(texts[row]), found["log_probs"][row, : len(scored[row])]
        own: Any = {name: None if x is None else x[row, :words] for name, x in found.items()}
        end = float(all_log_probs[words]) if len(all_log_probs) > words else None
        score = float(all_log_probs.sum())
        return Hypothesis(**own, tokens=texts[row], end_log_prob=end, score=score)

    return [[hypothesis(image * beams + beam) for beam in range(beams)] for image in range(images)]
