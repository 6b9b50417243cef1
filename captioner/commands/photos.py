"""Photos from disk, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from PIL import Image

from captioner.errors import PhotoError

BATCH_PHOTOS = 16
BATCH_PIXELS = 15_000_000  # several batches are in memory at once, four bytes a pixel

Key = TypeVar("Key")


def opened(
    photos: Iterable[tuple[Key, Path]], failed: Callable[[Path, PhotoError], None]
) -> Iterator[list[tuple[Key, Image.Image]]]:
    """Batches of photos with their keys; `failed` is told of each that cannot be read."""
    from captioner.data.transforms import open_photo

    batch: list[tuple[Key, Image.Image]] = []
    pixels = 0
    for key, path in photos:
        try:
            image = open_photo(path)
        except PhotoError as error:
            failed(path, error)
            continue
        batch.append((key, image))
        pixels += image.width * image.height
        if len(batch) == BATCH_PHOTOS or pixels >= BATCH_PIXELS:
            yield batch
            batch, pixels = [], 0
    if batch:
        yield batch
