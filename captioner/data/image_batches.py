"""Opening many images: in batches, with those left out that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from PIL import Image

from captioner.data.transforms import open_image
from captioner.errors import ImageError
from captioner.runtime.parallel import Device, prefetch

BATCH_IMAGES = 32
BATCH_PIXELS = 15_000_000  # several batches are in memory at once, four bytes a pixel

Key = TypeVar("Key")


def opened(
    images: Iterable[tuple[Key, Any]],
    failed: Callable[[Key, ImageError], None],
    device: Device,
    *,
    read: Callable[[Any], Image.Image] = open_image,
) -> Iterator[list[tuple[Key, Image.Image]]]:
    """Open images and yield them in batches.

    Args:
        images: Each image's key, and what `read` takes.
        failed: Called with the key of each image that cannot be read, and the reason.
        device: The device that will compute on the batches: a GPU has images read ahead for it.

    Yields:
        Batches of keys and upright RGB images, at most BATCH_IMAGES of them, fewer of large ones.
    """

    def try_to_read(image: tuple[Key, Any]) -> tuple[Key, Image.Image | ImageError]:
        try:
            return image[0], read(image[1])
        except ImageError as error:
            return image[0], error

    batch: list[tuple[Key, Image.Image]] = []
    pixels = 0
    for key, image in prefetch(try_to_read, images, device):
        if isinstance(image, ImageError):
            failed(key, image)
            continue
        batch.append((key, image))
        pixels += image.width * image.height
        if len(batch) == BATCH_IMAGES or pixels >= BATCH_PIXELS:
            yield batch
            batch, pixels = [], 0
    if batch:
        yield batch
