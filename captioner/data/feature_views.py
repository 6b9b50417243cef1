"""Random views of cached features, for want of new ones of the photo."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

MAX_STRETCH = 0.1  # of the logarithm of width / height


def random_view(features: Tensor, generator: np.random.Generator, *, min_area: float) -> Tensor:
    """A random crop of the map, resized to the whole, mirrored half the time.

    What a network makes of a mirrored or cropped photo is only about the mirrored or cropped map,
    so this is no substitute for views of the photo, but costs nothing and never ends.

    features: [C, h, w]. min_area: smallest share of the map that is kept.
    Returns float32 [C, h, w], bilinear between the cells.
    """
    features = features.float()
    if generator.random() < 0.5:
        features = features.flip(-1)
    side = math.sqrt(generator.uniform(min_area, 1.0))
    stretch = math.exp(generator.uniform(-MAX_STRETCH, MAX_STRETCH))
    height, width = min(side * stretch, 1.0), min(side / stretch, 1.0)
    # shares of half the map, from its centre
    y, x = generator.uniform(height - 1, 1 - height), generator.uniform(width - 1, 1 - width)
    crop = torch.tensor([[[width, 0.0, x], [0.0, height, y]]])
    places = functional.affine_grid(crop, [1, 1, *features.shape[1:]], align_corners=False)
    return functional.grid_sample(
        features.unsqueeze(0), places, padding_mode="border", align_corners=False
    )[0]
