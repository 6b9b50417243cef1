from __future__ import annotations

import numpy as np
import pytest

from captioner.types import Geometry
from captioner.visualization import Caption


@pytest.fixture
def make_caption():
    """Captions with random maps, or with those that are given."""

    def make(photo_size, words, *, maps=None, rows=7, columns=9, geometry=None, hard=False):
        rng = np.random.default_rng(len(words))
        count = len(words)
        if maps is None:
            maps = rng.dirichlet(np.full(rows * columns, 0.3), size=count)
        maps = np.asarray(maps, dtype=np.float32).reshape(count, rows, columns)
        width, height = photo_size
        return Caption(
            words=list(words),
            maps=maps,
            beta=rng.uniform(0.1, 0.9, count).astype(np.float32),
            log_probs=np.log(rng.uniform(0.01, 1, count)).astype(np.float32),
            geometry=geometry or Geometry(width, height, 0, 0, width, height),
            cells=maps.reshape(count, rows * columns).argmax(axis=1) if hard else None,
        )

    return make
