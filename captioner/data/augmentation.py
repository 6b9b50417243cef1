"""Random changes of training images."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from captioner.types import Geometry

if TYPE_CHECKING:
    from captioner.data.transforms import ImageTransform

GAP = 3.0  # an image that is so many times as large as its input is reduced in two steps
ON_TENSORS = {Image.Resampling.BILINEAR: "bilinear", Image.Resampling.BICUBIC: "bicubic"}


@dataclass(frozen=True)
class Augmentation:
    """Random changes of training images, as in `DataConfig`. Each is off at its default."""

    flip: float = 0.0
    min_area: float = 1.0
    colour: float = 0.0


def augmented_levels(
    transform: ImageTransform,
    image: Image.Image,
    augmentation: Augmentation,
    generator: np.random.Generator,
) -> tuple[np.ndarray, Geometry]:
    """Return the pixels and the view of `ImageTransform.levels`, cropped and mirrored at random."""
    side = generator.uniform(augmentation.min_area, 1.0) ** 0.5  # a crop with the same aspect ratio
    flipped = bool(generator.random() < augmentation.flip)
    left, top = generator.random(2) * (1.0 - side) * image.size
    part = Geometry(*image.size, left, top, side * image.width, side * image.height, flipped)
    view, (width, height) = transform.cropped(part)
    # From here on it begins and ends between two pixels of the image.
    across, down = max(1, round(view.width_px)), max(1, round(view.height_px))
    left = min(math.floor(view.left_px), image.width - across)
    top = min(math.floor(view.top_px), image.height - down)
    view = replace(view, left_px=left, top_px=top, width_px=across, height_px=down)
    is_small = across < GAP * width and down < GAP * height
    if is_small and transform.resampling in ON_TENSORS:
        rows, columns = slice(top, top + down), slice(left, left + across)
        mode = ON_TENSORS[transform.resampling]
        pixels = resize_on_tensor(np.asarray(image)[rows, columns], (height, width), mode)
    else:
        pixels = np.asarray(transform.resized(image, view, (width, height)))
    if flipped:
        # by channels: NumPy copies three bytes from right to left five times as slowly
        pixels = np.stack([pixels[:, ::-1, channel] for channel in range(3)], axis=-1)
    return pixels, view


def resize_on_tensor(pixels: np.ndarray, size: tuple[int, int], mode: str) -> np.ndarray:
    """Resize uint8 [height, width, 3] as Pillow does, in a fifth of its time, with PyTorch."""
    import torch
    from torch.nn import functional as F

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.from_numpy(pixels)  # which is only read
    # With these strides of a batch of one, PyTorch takes its channels-last way.
    batch = tensor.unsqueeze(0).permute(0, 3, 1, 2)
    resized: Any = F.interpolate(batch, size=size, mode=mode, antialias=True)
    return np.ascontiguousarray(resized[0].permute(1, 2, 0).numpy())


def colour_factors(
    augmentation: Augmentation | None, generator: np.random.Generator
) -> np.ndarray | None:
    """Draw factors of brightness, contrast and saturation, float32 [3]; None: colours stay."""
    if augmentation is None or not augmentation.colour:
        return None
    most = augmentation.colour
    return (1.0 + generator.uniform(-most, most, 3)).astype(np.float32)


def with_other_colours(pixels: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return uint8 pixels [H, W, 3] as `recoloured` of a batch."""
    import torch

    from captioner.data.batch import recoloured

    levels = torch.from_numpy(pixels.astype(np.float32)).permute(2, 0, 1).unsqueeze(0)
    levels = recoloured(levels, torch.from_numpy(factors).unsqueeze(0))
    return np.asarray(levels[0].permute(1, 2, 0).round().to(torch.uint8))
