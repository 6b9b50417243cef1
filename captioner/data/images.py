"""Images: files, bytes and pixels read as upright RGB, and batches of them; PNG written.

Only Pillow decodes, from an allow-list of formats: torchvision's decoders crash on damaged files.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import os
import re
import struct
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from PIL import Image, ImageOps, JpegImagePlugin, UnidentifiedImageError

from captioner.errors import ConfigError, ImageError
from captioner.runtime.parallel import Device, prefetch
from captioner.types import Geometry

if TYPE_CHECKING:
    from torch import Tensor

    from captioner.data.splits import ImagePath
    from captioner.data.transforms import ImageTransform

# "JPEG" opens MPO files, the JPEGs of several pictures that phones write, too.
IMAGE_FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "AVIF")
IMAGE_SUFFIXES = frozenset(
    ".jpg .jpeg .jpe .jfif .png .gif .webp .bmp .tif .tiff .ppm .pgm .avif".split()
)
HEIF_SUFFIXES = frozenset((".heic", ".heif", ".hif"))
_HEIF = re.compile(rb".{4}ftyp(?:.{4})*(?:hei[cxms]|hevc)", re.DOTALL)  # the brands of HEIC photos
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:[/\\]", re.IGNORECASE)  # not C:/; Path drops a slash

MAX_IMAGE_PIXELS = 120_000_000  # decoded whole: 360 MB of memory
MAX_JPEG_PIXELS = 500_000_000  # of baseline JPEGs, which are decoded at a fraction of their size
HALVED_FROM_PIXELS = 89_478_485  # larger photos are halved; above it Pillow warns of a bomb
_LIMITS = (
    f"{MAX_IMAGE_PIXELS // 10**6} megapixels ({MAX_JPEG_PIXELS // 10**6} for a JPEG that is not "
    "progressive); make it smaller"
)
MIN_CONTRAST = 8.0  # standard deviation of the 256 levels; a frame with less shows nothing
MAX_BLANK_FRAMES = 100
_AVERAGED = ("L", "LA", "RGB", "RGBA", "CMYK", "YCbCr")

# Pillow also logs some of the errors that it raises; Python prints them without a handler. It warns
# of harmless EXIF tags, and of large photos, for which the limits above are ours.
logging.getLogger("PIL").addHandler(logging.NullHandler())
warnings.filterwarnings("ignore", module=r"PIL\.")

# A path or a place in a tar file, the bytes of a file or an open file, a PIL image of any mode,
# uint8 pixels [H, W, 3] as an array or a tensor, or the result of `Captioner.transform`.
ImageInput: TypeAlias = (
    "str | ImagePath | bytes | IO[bytes] | Image.Image | np.ndarray | Tensor"
    " | tuple[Tensor | np.ndarray, Geometry]"
)
BATCH_IMAGES = 32
BATCH_PIXELS = 15_000_000  # several batches are in memory at once, four bytes a pixel

Key = TypeVar("Key")


@functools.cache
def register_heif() -> bool:
    """Let Pillow open HEIC files if pillow-heif is installed, and return whether it is."""
    try:
        import pillow_heif
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True


def open_image(
    source: str | ImagePath | bytes | IO[bytes], *, max_pixels: int | None = None
) -> Image.Image:
    """Read an image file as upright 8-bit RGB.

    EXIF orientation is applied, 16-bit grey is scaled to 8 bits, transparency is laid on white, and
    of an animation the first frame that shows something is taken. A photo of more than
    HALVED_FROM_PIXELS is returned at half its size or less.

    Args:
        source: A path, a place in a tar file, the bytes of a file, or a file object that can seek.
        max_pixels: A lower limit than those of this module.

    Raises:
        ImageError: The file cannot be read, or is too large. The caller names the file.
    """
    # Pillow's decoders raise almost anything on hostile bytes (OSError, ValueError, SyntaxError,
    # struct.error, ...), so every exception here means one thing: this file cannot be decoded.
    try:
        if isinstance(source, (str, Path)):
            if _ADDRESS.match(str(source)) and not os.path.exists(source):
                raise ImageError("is an address; download the photo and give its file")
            with Path(source).open("rb") as file:
                return _decode(file, max_pixels)
        if hasattr(source, "read_bytes"):  # a place in a tar file
            source = source.read_bytes()
        return _decode(io.BytesIO(source) if isinstance(source, bytes) else source, max_pixels)
    except ImageError:
        raise
    except FileNotFoundError:
        raise ImageError("no such file") from None
    except Image.DecompressionBombError:
        raise ImageError(f"is over the limit of {_LIMITS}") from None
    except UnidentifiedImageError:
        formats = ", ".join(IMAGE_FORMATS)
        raise ImageError(
            f"is not a photo of a known format ({formats}, HEIC with pillow-heif), or is cut short"
        ) from None
    except Exception as error:  # noqa: BLE001  (see above)
        if reason := getattr(error, "strerror", None):  # of the system, not of Pillow
            raise ImageError(f"cannot be read ({reason})") from None
        raise ImageError(f"is damaged and cannot be decoded ({error})") from None


def _decode(file: IO[bytes], max_pixels: int | None) -> Image.Image:
    file.seek(0)
    head = file.read(64)
    if not head:
        raise ImageError("is an empty file")
    is_heif = _HEIF.match(head) is not None
    if is_heif and not register_heif():
        raise ImageError(
            "is a HEIC photo: install pillow-heif (pip install pillow-heif), or convert it to JPEG"
        )
    file.seek(0)
    try:
        image: Image.Image = Image.open(file, formats=("HEIF",) if is_heif else IMAGE_FORMATS)
    except Image.DecompressionBombError:  # more than twice HALVED_FROM_PIXELS
        if not head.startswith(b"\xff\xd8\xff"):
            raise
        file.seek(0)
        image = JpegImagePlugin.JpegImageFile(file)
    with image:
        pixels, size = image.width * image.height, f"has {image.width} x {image.height} pixels"
        if max_pixels is not None and pixels > max_pixels:
            limit = f"{max_pixels / 10**6:g} megapixels; make it smaller"
            raise ImageError(f"{size}, over the limit of {limit}")
        baseline = image.format in ("JPEG", "MPO") and not image.info.get("progressive")
        if pixels > (MAX_JPEG_PIXELS if baseline else MAX_IMAGE_PIXELS):
            raise ImageError(f"{size}, over the limit of {_LIMITS}")
        scale = 1  # a half, a quarter or an eighth
        while baseline and pixels > scale**2 * HALVED_FROM_PIXELS:
            scale *= 2
        if scale > 1:
            image.draft(None, (image.width // scale, image.height // scale))
        if not is_heif:  # opens at its primary image, not always the first
            image.seek(0)
        photo = _load(image)
        if image.format in ("GIF", "WEBP", "PNG", "AVIF") and getattr(image, "is_animated", False):
            photo = _first_frame_with_contrast(image, photo)
        return photo


def _first_frame_with_contrast(animation: Image.Image, first: Image.Image) -> Image.Image:
    """Return the first frame that is not blank, or else the one with the most contrast, as RGB."""
    best, most = first, _contrast(first)
    with contextlib.suppress(Exception):  # behind the last frame, or a damaged one
        for number in range(1, MAX_BLANK_FRAMES):
            if most >= MIN_CONTRAST:
                break
            animation.seek(number)
            frame = _load(animation.copy())
            if (contrast := _contrast(frame)) > most:
                best, most = frame, contrast
    return best


def _contrast(image: Image.Image) -> float:
    """Return the standard deviation of the channel that varies most, of 256 levels."""
    small = image.resize((64, 64), Image.Resampling.BOX, reducing_gap=2.0)
    return float(np.asarray(small).std(axis=(0, 1)).max())


def _load(image: Image.Image) -> Image.Image:
    """Decode the current frame as upright RGB, halved if it is large."""
    image.load()
    ImageOps.exif_transpose(image, in_place=True)
    if image.width * image.height <= HALVED_FROM_PIXELS:
        return _to_rgb(image)
    # Levels of a palette, or of black and white, cannot be averaged.
    return _to_rgb(image.reduce(2)) if image.mode in _AVERAGED else _to_rgb(image).reduce(2)


def upright_rgb(image: Image.Image) -> Image.Image:
    """Return a PIL image of any mode as `open_image` would read it; an ImageError says why not."""
    if image.width * image.height > MAX_IMAGE_PIXELS:
        raise ImageError(f"has {image.width} x {image.height} pixels, over the limit of {_LIMITS}")
    try:
        image.load()
        # exif_transpose would copy a plain image
        return _to_rgb(ImageOps.exif_transpose(image) if image.getexif() else image)
    except Exception as error:  # noqa: BLE001  (as in open_image)
        raise ImageError(f"cannot be decoded ({error})") from None


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith(("I", "F")):  # 16-bit and 32-bit grey; convert("RGB") would clip
        grey = np.nan_to_num(np.asarray(image, dtype=np.float64))
        full_scale = 65535.0 if image.mode.startswith("I;16") or grey.max() > 255 else 255.0
        if image.mode == "F" and grey.max() <= 1:  # as programs of science write
            full_scale = 1.0
        grey = grey.clip(0, full_scale) * (255.0 / full_scale)
        return Image.fromarray(grey.round().astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


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
    if isinstance(image, (str, bytes, Image.Image)) or _is_prepared(image):
        return image
    if isinstance(image, os.PathLike):
        return os.fsdecode(image)
    if hasattr(image, "read_bytes"):  # a place in a tar file
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


def png(image: Image.Image) -> bytes:
    """Return the bytes of an RGB image as PNG, in a third of the time that Pillow takes.

    Pillow tries five filters for every line. Here it is always the difference to the line above.
    """
    pixels = np.asarray(image.convert("RGB")).reshape(image.height, 3 * image.width)
    lines = np.empty((image.height, 1 + pixels.shape[1]), dtype=np.uint8)
    lines[:, 0] = 2  # the filter "up"
    lines[0, 1:] = pixels[0]
    np.subtract(pixels[1:], pixels[:-1], out=lines[1:, 1:])
    parts = [b"\x89PNG\r\n\x1a\n"]
    for kind, data in (
        (b"IHDR", struct.pack(">IIBBBBB", *image.size, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines.data, 1)),
        (b"IEND", b""),
    ):
        checksum = zlib.crc32(data, zlib.crc32(kind))
        parts += [struct.pack(">I", len(data)), kind, data, struct.pack(">I", checksum)]
    return b"".join(parts)
