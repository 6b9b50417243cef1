"""From an image to the network's input, and the geometry that leads back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from captioner.config import Interpolation, ResizeMode
from captioner.data.augmentation import (
    ON_TENSORS,
    Augmentation,
    in_whole_pixels,
    random_view,
    resize_on_tensor,
    with_other_colours,
)
from captioner.data.images import MIN_CONTRAST
from captioner.types import Geometry

if TYPE_CHECKING:
    from torch import Tensor

GAP = 3.0  # an image that is so many times as large as its input is reduced in two steps
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

        With `letterbox` the padding is missing, from the pixels and from the rectangle.
        """
        view = Geometry(image.width, image.height, 0, 0, image.width, image.height)
        augmentation = self.augmentation if generator else None
        if augmentation and generator:
            view = random_view(view, augmentation, generator)
        width, height = self.width_px, self.height_px
        if self.resize == "crop":
            view = self._centre_crop(view)
        elif self.resize == "letterbox":
            scale = min(width / view.width_px, height / view.height_px)
            width = min(width, max(1, round(view.width_px * scale)))
            height = min(height, max(1, round(view.height_px * scale)))
        if augmentation:
            view = in_whole_pixels(view)
        # Sums may exceed the image by a rounding error, which Pillow refuses.
        right = min(view.left_px + view.width_px, image.width)
        bottom = min(view.top_px + view.height_px, image.height)
        is_small = view.width_px < GAP * width and view.height_px < GAP * height
        if augmentation and is_small and self.resampling in ON_TENSORS:
            place = slice(int(view.top_px), int(bottom)), slice(int(view.left_px), int(right))
            mode = ON_TENSORS[self.resampling]
            pixels = resize_on_tensor(np.asarray(image)[place], (height, width), mode)
        else:
            # reducing_gap lets Pillow halve huge images cheaply before the exact filter.
            box = (view.left_px, view.top_px, right, bottom)
            pixels = np.asarray(image.resize((width, height), self.resampling, box, GAP))
        if view.flipped:
            # by channels: NumPy copies three bytes from right to left five times as slowly
            pixels = np.stack([pixels[:, ::-1, channel] for channel in range(3)], axis=-1)
        if augmentation and generator and augmentation.colour:
            pixels = with_other_colours(pixels, augmentation.colour, generator)
        return pixels, view

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

    def _centre_crop(self, view: Geometry) -> Geometry:
        """Return the largest rectangle in the middle of the view with the input's aspect ratio."""
        scale = max(self.width_px / view.width_px, self.height_px / view.height_px)
        width = min(self.width_px / scale, view.width_px)
        height = min(self.height_px / scale, view.height_px)
        return replace(
            view,
            left_px=view.left_px + (view.width_px - width) / 2,
            top_px=view.top_px + (view.height_px - height) / 2,
            width_px=width,
            height_px=height,
        )
