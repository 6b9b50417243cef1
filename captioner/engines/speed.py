"""How fast an engine's encoder is, for `captioner doctor --measure`."""

from __future__ import annotations

import time

import numpy as np

from captioner.config import PreprocessConfig
from captioner.engines.choice import Engine

_BATCH = 16  # as folders are captioned


def speed_ratio(one: Engine, other: Engine, size: PreprocessConfig) -> float:
    """Return how many times as fast one engine's encoder is as another's of the same model.

    Each by the best of three runs, in turns, so that other work of the machine slows both.
    """
    shape = (_BATCH, 3, size.height_px, size.width_px)
    images = list(np.random.default_rng(0).standard_normal(shape, dtype=np.float32))
    best = [float("inf"), float("inf")]
    for _ in range(3):
        for index, engine in enumerate((one, other)):
            started = time.perf_counter()
            engine.encode(images)
            best[index] = min(best[index], time.perf_counter() - started)
    return best[1] / best[0]
