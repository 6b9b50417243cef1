"""Photos from disk, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from PIL import Image

from captioner.errors import ImageError

if TYPE_CHECKING:
    import torch

BATCH_PHOTOS = 16
BATCH_PIXELS = 15_000_000  # several batches are in memory at once, four bytes a pixel

Key = TypeVar("Key")


def opened(
    photos: Iterable[tuple[Key, Path]],
    failed: Callable[[Path, ImageError], None],
    device: torch.device,
) -> Iterator[list[tuple[Key, Image.Image]]]:
    """Batches of photos with their keys; `failed` is told of each that cannot be read.

    device: the one that waits for them.
    """
    from captioner.data.transforms import open_image
    from captioner.runtime.parallel import prefetch

    def read(photo: tuple[Key, Path]) -> tuple[Key, Path, Image.Image | ImageError]:
        key, path = photo
        try:
            return key, path, open_image(path)
        except ImageError as error:
            return key, path, error

    batch: list[tuple[Key, Image.Image]] = []
    pixels = 0
    for key, path, image in prefetch(read, photos, device):
        if isinstance(image, ImageError):
            failed(path, image)
            continue
        batch.append((key, image))
        pixels += image.width * image.height
        if len(batch) == BATCH_PHOTOS or pixels >= BATCH_PIXELS:
            yield batch
            batch, pixels = [], 0
    if batch:
        yield batch
