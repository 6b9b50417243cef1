"""Drawn photos."""

from __future__ import annotations

from functools import cache

import numpy as np
import tiny
from PIL import Image


def noise(width, height):
    return Image.fromarray(tiny.noise(height, width))


@cache
def detailed_photo(width, height):
    """Smooth colours with noise: what a photo has, and what a wrong formula would miss."""
    rng = np.random.default_rng(5)
    y, x = np.mgrid[:height, :width]
    planes = [128 + 100 * np.sin(x / 61 + 2), 128 + 100 * np.cos(y / 47), (x + y) / 5]
    pixels = np.stack(planes, axis=-1) + rng.normal(0, 6, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
