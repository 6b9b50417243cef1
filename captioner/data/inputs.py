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


def network_input(image: ImageInput, transform: ImageTransform) -> tuple[np.ndarray, Geometry]:
    """Return the network's input, float32 [3, height, width], and the geometry of an image."""
    if isinstance(image, tuple) and _is_prepared(image):
        given, geometry = image
        array = np.asarray(_on_cpu(given), dtype=np.float32)
        expected = (3, transform.height_px, transform.width_px)
        if array.shape != expected:
            raise ImageError(
                f"has pixels {list(array.shape)}, but this model reads {list(expected)}; make "
                "it by Captioner.transform of the same model"
            )
        return array, geometry
    try:
        return transform.array(_opened(image))
    except ImageError as error:
        if not isinstance(image, (str, os.PathLike)):
            raise
        raise ImageError(f"{os.fspath(image)}: {error}") from None


def _opened(source: Any) -> Image.Image:
    """Return an image of any kind but a prepared one as upright RGB."""
    if isinstance(source, Image.Image):
        return upright_rgb(source)
    if hasattr(source, "__array__"):
        pixels = np.asarray(_on_cpu(source))
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[-1] != 3:
            raise ImageError(
                f"is an array of {pixels.dtype} {list(pixels.shape)}; use uint8 pixels "
                "[height, width, 3], red, green and blue from 0 to 255"
            )
        return Image.fromarray(np.ascontiguousarray(pixels))
    if not isinstance(source, (str, os.PathLike, bytes, TarMember)):
        raise ImageError(
            f"is a {type(source).__name__}; give a path, the bytes of a file, an open file, a PIL "
            "image, or uint8 pixels [height, width, 3]"
        )
    return open_image(os.fsdecode(source) if isinstance(source, os.PathLike) else source)


def as_list(images: Any) -> list[ImageInput]:
    """Return the images of an iterable as a list, an open file as its bytes.

    A single image, a likely mistake, is refused.
    """
    pixels = _is_prepared(images) or getattr(images, "ndim", 0) == 3
    if pixels or isinstance(images, (str, os.PathLike, bytes, Image.Image)):
        raise ConfigError("images: is one image; put it in a list, or use caption")
    return [_content(image) if hasattr(image, "read") else image for image in images]


def _content(file: Any) -> bytes:
    """Return all bytes of an open file, wherever it stands."""
    if file.seekable():
        file.seek(0)
    content: bytes = file.read()
    return content


def drawable(image: Any) -> str | bytes | Image.Image | None:
    """Return the image that a caption keeps to draw on; None if it cannot be read again."""
    if isinstance(image, TarMember):
        return image.read_bytes()
    if isinstance(image, os.PathLike):
        return os.fsdecode(image)
    if isinstance(image, (str, bytes, Image.Image)):
        return image
    return _opened(image) if hasattr(image, "__array__") else None


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
