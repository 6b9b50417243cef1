"""How fast the encoder is in bfloat16 on this machine: on some processors it is slower."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from captioner.checkpoint import model_folder
from captioner.config import PreprocessConfig
from captioner.engines.choice import Engine, open_engine
from captioner.log import logger
from captioner.runtime.device import times_as_fast

_BATCH = 16  # as folders are captioned; PyTorch's share of fixed costs is larger in smaller ones


def speed_ratio(one: Engine, other: Engine, size: PreprocessConfig) -> float:
    """Return how many times as fast one engine's encoder is as another's of the same model."""
    shape = (_BATCH, 3, size.height_px, size.width_px)
    images = list(np.random.default_rng(0).standard_normal(shape, dtype=np.float32))
    return times_as_fast(lambda: one.encode(images), lambda: other.encode(images))


@functools.cache
def bfloat16_speed(model: str | Path) -> float:
    """Return how many times as fast a model's encoder is on this CPU in bfloat16 as in float32.

    It takes about two seconds and is measured once in a process. In float32 the engine is
    that which `auto` chooses for the model.

    Args:
        model: Bundled name, or the path of a model folder.
    """
    folder = model_folder(model)
    half, config, _ = open_engine(folder, engine="torch", device="cpu", precision="bfloat16")
    whole, _, _ = open_engine(folder, engine="auto", device="cpu", precision="float32")
    return speed_ratio(half, whole, config.preprocess)


def warn_if_slower(ratio: float) -> None:
    """Warn where bfloat16 is slower than float32, `ratio` times as fast."""
    if ratio < 1:
        logger.warning(
            f"precision bfloat16: on this machine the encoder is {1 / ratio:.1f} times slower than "
            f"in float32, {_BATCH} photos at a time; use float32"
        )
