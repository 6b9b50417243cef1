"""From an image to the network's input, and the geometry that leads back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from captioner.config import Interpolation, ResizeMode
from captioner.data.augmentation import (
    GAP,
    Augmentation,
    augmented_levels,
    colour_factors,
    with_other_colours,
)
from captioner.data.images import MIN_CONTRAST
from captioner.types import Geometry

if TYPE_CHECKING:
    from torch import Tensor

MAX_ROUGHNESS = 0.6  # variance of neighbours' differences over that of white noise


class ImageTransform:
    """Upright RGB image to the network's normalised input, with its geometry.

    Args:
        height_px, width_px, resize, interpolation, mean, std: As in `PreprocessConfig`, which
            `models.build.resolved` completes. `letterbox` pads with the mean, which normalisation
            makes zero.
        augmentation: Random changes, for calls with a generator.
    """

    def __init__(
        self,
        *,
        height_px: int,
        width_px: int,
        resize: ResizeMode = "squash",
        interpolation: Interpolation = "bicubic",
        mean: tuple[float, float, float] = (0.5, 0.5, 0.5),
        std: tuple[float, float, float] = (0.5, 0.5, 0.5),
        augmentation: Augmentation | None = None,
    ) -> None:
        self.height_px = height_px
        self.width_px = width_px
        self.resize = resize
        self.resampling = Image.Resampling[interpolation.upper()]
        self.mean = np.asarray(mean, dtype=np.float32)
        self.std = np.asarray(std, dtype=np.float32)
        levels = np.arange(256, dtype=np.float32)[:, None] / 255.0
        # Input of each of the 256 values of a channel: a table is faster than computing.
        self._inputs = np.ascontiguousarray(((levels - self.mean) / self.std).T)
        self.augmentation = augmentation

    def __call__(
        self, image: Image.Image, generator: np.random.Generator | None = None
    ) -> tuple[Tensor, Geometry]:
        """Transform an image as `array` does, to a tensor."""
        import torch

        array, geometry = self.array(image, generator)
        return torch.from_numpy(array), geometry

    def array(
        self, image: Image.Image, generator: np.random.Generator | None = None
    ) -> tuple[np.ndarray, Geometry]:
        """Transform an image.

        Args:
            generator: Draws the augmentation; without one nothing is random.

        Returns:
            float32 [3, height_px, width_px], (x / 255 - mean) / std, and the rectangle of the image
            that it covers.
        """
        levels, view = self.levels(image, generator)
        if generator and (factors := colour_factors(self.augmentation, generator)) is not None:
            levels = with_other_colours(levels, factors)
        height, width = levels.shape[:2]
        left, top = (self.width_px - width) // 2, (self.height_px - height) // 2
        array = np.zeros((3, self.height_px, self.width_px), dtype=np.float32)
        for channel, inputs in enumerate(self._inputs):
            place = array[channel, top : top + height, left : left + width]
            # "clip" spares a check: no byte is out of the table
            np.take(inputs, levels[..., channel], out=place, mode="clip")
        if self.resize == "letterbox":  # the input covers more than the view, by the padding
            x_scale, y_scale = view.width_px / width, view.height_px / height
            if view.flipped:  # the mirrored content is `left` pixels from the left
                left = self.width_px - width - left
            view = replace(
                view,
                left_px=view.left_px - left * x_scale,
                top_px=view.top_px - top * y_scale,
                width_px=self.width_px * x_scale,
                height_px=self.height_px * y_scale,
            )
        return array, view

    def levels(
        self, image: Image.Image, generator: np.random.Generator | None = None
    ) -> tuple[np.ndarray, Geometry]:
        """Return the pixels that `array` normalises: uint8 [height, width, 3].

        With `letterbox` the padding is missing, from the pixels and from the rectangle. With a
        generator, `colour_factors` are to be drawn from it and applied.
        """
        if self.augmentation and generator:
            return augmented_levels(self, image, self.augmentation, generator)
        whole = Geometry(image.width, image.height, 0, 0, image.width, image.height)
        view, size = self.cropped(whole)
        return np.asarray(self.resized(image, view, size)), view

    def cropped(self, view: Geometry) -> tuple[Geometry, tuple[int, int]]:
        """Return the part of a view that the input shows, and its (width, height) there."""
        width, height = self.width_px, self.height_px
        across, down = width / view.width_px, height / view.height_px
        if self.resize == "crop":  # the middle, in the input's shape
            scale = max(across, down)
            kept = min(width / scale, view.width_px), min(height / scale, view.height_px)
            left = view.left_px + (view.width_px - kept[0]) / 2
            top = view.top_px + (view.height_px - kept[1]) / 2
            view = replace(view, left_px=left, top_px=top, width_px=kept[0], height_px=kept[1])
        elif self.resize == "letterbox":
            scale = min(across, down)
            width = min(width, max(1, round(view.width_px * scale)))
            height = min(height, max(1, round(view.height_px * scale)))
        return view, (width, height)

    def resized(self, image: Image.Image, view: Geometry, size: tuple[int, int]) -> Image.Image:
        """Return a view of the image at (width, height)."""
        # Sums may exceed the image by a rounding error, which Pillow refuses.
        right = min(view.left_px + view.width_px, image.width)
        bottom = min(view.top_px + view.height_px, image.height)
        # reducing_gap lets Pillow halve huge images cheaply before the exact filter.
        box = (view.left_px, view.top_px, right, bottom)
        return image.resize(size, self.resampling, box=box, reducing_gap=GAP)

    def shows_something(self, array: np.ndarray) -> bool:
        """Return whether an input is more than a plain surface or noise.

        Of 4,700 photos, the one with the least contrast has nearly twice MIN_CONTRAST, and the
        roughest has four fifths of MAX_ROUGHNESS. White noise of 100 pixels and more is above it.

        Args:
            array: float32 [3, height, width], as `array` returns it.
        """
        if self.resize == "letterbox":  # without what is padded
            filled = (array != 0).any(axis=0)
            array = array[:, filled.any(axis=1)][:, :, filled.any(axis=0)]
            if not array.size:
                return False
        size = max(1, min(array.shape[1:]) // 80)  # pixels that become one: noise stays noise
        height, width = (side // size * size for side in array.shape[1:])
        parts = [array[:, i:height:size, j:width:size] for i in range(size) for j in range(size)]
        levels = np.add.reduce(parts) * (self.std[:, None, None] * (255 / size**2))
        if levels.std(axis=(1, 2)).max() < MIN_CONTRAST:
            return False
        grey = levels.mean(axis=0)
        steps = sum(float(np.square(np.diff(grey, axis=axis)).mean()) for axis in (0, 1))
        return steps < 4 * MAX_ROUGHNESS * float(grey.var())
