"""Random views of cached features, for want of new ones of the photo."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

MAX_STRETCH = 0.1  # of a side's logarithm: one grows by it and the other shrinks


@dataclass(frozen=True)
class FeatureCrop:
    """A random crop of a map of features, resized to the whole, now and then mirrored.

    What a network makes of a mirrored or cropped photo is only about the mirrored or cropped map,
    so this is no substitute for views of the photo, but costs nothing and never ends.

    min_area: smallest share of the map that is kept. flip: probability of mirroring.
    """

    min_area: float
    flip: float

    def __call__(self, features: Tensor, generator: np.random.Generator) -> Tensor:
        """Features [C, h, w] to float32 [C, h, w], bilinear between the cells."""
        features = features.float()
        if generator.random() < self.flip:
            features = features.flip(-1)
        side = math.sqrt(generator.uniform(self.min_area, 1.0))
        limit = min(MAX_STRETCH, -math.log(side))  # or a side would leave the map
        stretch = math.exp(generator.uniform(-limit, limit))
        height, width = side * stretch, side / stretch
        # shares of half the map, from its centre
        y, x = generator.uniform(height - 1, 1 - height), generator.uniform(width - 1, 1 - width)
        crop = torch.tensor([[[width, 0.0, x], [0.0, height, y]]])
        places = functional.affine_grid(crop, [1, 1, *features.shape[1:]], align_corners=False)
        return functional.grid_sample(
            features.unsqueeze(0), places, padding_mode="border", align_corners=False
        )[0]
