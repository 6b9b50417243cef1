"""The images that a caption can be asked for: files, bytes, pixels, prepared inputs; batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from PIL import Image

from captioner.data.images import ImagePath, TarMember, open_image, upright_rgb
from captioner.data.transforms import ImageTransform
from captioner.errors import ConfigError, ImageError
from captioner.runtime.parallel import Device, prefetch
from captioner.types import Geometry

if TYPE_CHECKING:
    from torch import Tensor

# A path or a place in a tar file, the bytes of a file or an open file, a PIL image of any mode,
# uint8 pixels [H, W, 3] as an array or a tensor, or the result of `Captioner.transform`.
ImageInput: TypeAlias = (
    "str | ImagePath | bytes | IO[bytes] | Image.Image | np.ndarray | Tensor"
    " | tuple[Tensor | np.ndarray, Geometry]"
)
BATCH_IMAGES = 32
BATCH_PIXELS = 15_000_000  # several batches are in memory at once, four bytes a pixel

Key = TypeVar("Key")


def network_input(image: Any, transform: ImageTransform) -> tuple[np.ndarray, Geometry]:
    """Return the network's input, float32 [3, height, width], and geometry of one of `as_list`."""
    if isinstance(image, tuple):
        given, geometry = image
        array = np.asarray(_on_cpu(given), dtype=np.float32)
        expected = (3, transform.height_px, transform.width_px)
        if array.shape != expected:
            raise ImageError(f"has shape {array.shape}, and this model reads {expected}")
        return array, geometry
    try:
        opened = upright_rgb(image) if isinstance(image, Image.Image) else open_image(image)
    except ImageError as error:
        raise ImageError(f"{image}: {error}" if isinstance(image, str) else str(error)) from None
    return transform.array(opened)


def as_list(images: Any) -> list[Any]:
    """Return the images of an iterable as what can be read twice: for the model and to draw on.

    These are paths as text, bytes of files, PIL images, and results of `Captioner.transform`. A
    single image, a likely mistake, is refused.
    """
    pixels = _is_prepared(images) or getattr(images, "ndim", 0) == 3
    if pixels or isinstance(images, (str, os.PathLike, bytes, Image.Image)):
        raise ConfigError("images: is one image; put it in a list, or use caption")
    return list(map(_plain, images))


def _plain(image: Any) -> Any:
    """Return an image of any kind as `as_list` does."""
    if isinstance(image, (str, bytes, Image.Image)) or _is_prepared(image):
        return image
    if isinstance(image, os.PathLike):
        return os.fsdecode(image)
    if isinstance(image, TarMember):
        return image.read_bytes()
    if hasattr(image, "read"):  # wherever it stands
        if image.seekable():
            image.seek(0)
        return image.read()
    if not hasattr(image, "__array__"):
        raise ImageError(
            f"is a {type(image).__name__}; give a path, the bytes of a file, an open file, a PIL "
            "image, or uint8 pixels [height, width, 3]"
        )
    pixels = np.asarray(_on_cpu(image))
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[-1] != 3 or not pixels.size:
        raise ImageError(
            f"is an array of {pixels.dtype} {list(pixels.shape)}; use uint8 pixels "
            "[height, width, 3], red, green and blue from 0 to 255"
        )
    return Image.fromarray(np.ascontiguousarray(pixels))


def _is_prepared(image: Any) -> bool:
    """Return whether an image is a result of `Captioner.transform`."""
    return isinstance(image, tuple) and len(image) == 2 and isinstance(image[1], Geometry)


def _on_cpu(values: Any) -> Any:
    """Return an array as it is, and a tensor on the CPU, where NumPy can read it."""
    return values.detach().cpu() if hasattr(values, "detach") else values


def opened(
    images: Iterable[tuple[Key, Any]],
    failed: Callable[[Key, ImageError], None],
    device: Device,
    *,
    read: Callable[[Any], Image.Image] = open_image,
) -> Iterator[list[tuple[Key, Image.Image]]]:
    """Open images and yield batches of at most BATCH_IMAGES, fewer of large ones, with their keys.

    Args:
        images: Each image's key, and what `read` takes.
        failed: Called with the key of each image that cannot be read, and the reason.
        device: What will compute on the batches: a GPU has images read ahead for it.
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
