"""Read image files as upright RGB.

Only Pillow decodes, from an allow-list of formats: torchvision's decoders crash on damaged files.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import posixpath
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np
from PIL import Image, ImageOps, JpegImagePlugin, UnidentifiedImageError

from captioner.errors import ImageError

# "JPEG" opens MPO files, the JPEGs of several pictures that phones write, too.
IMAGE_FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "AVIF")
IMAGE_SUFFIXES = frozenset(
    ".jpg .jpeg .jpe .jfif .png .gif .webp .bmp .tif .tiff .ppm .pgm .avif".split()
)
HEIF_SUFFIXES = frozenset((".heic", ".heif", ".hif"))
_HEIF = re.compile(rb".{4}ftyp(?:.{4})*(?:hei[cxms]|hevc)", re.DOTALL)  # the brands of HEIC photos

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


@dataclass(frozen=True, slots=True)
class TarMember:
    """An image in a tar file.

    Attributes:
        offset, size: Where its bytes begin and how many there are.
        changed: When the tar file was changed, in nanoseconds.
    """

    tar: Path
    member: str
    offset: int
    size: int
    changed: int

    def __str__(self) -> str:
        return f"{self.tar}::{self.member}"

    @property
    def name(self) -> str:
        return posixpath.basename(self.member)

    def read_bytes(self) -> bytes:
        """Return its bytes."""
        with self.tar.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


ImagePath: TypeAlias = Path | TarMember


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
        if isinstance(source, TarMember):
            source = source.read_bytes()
        if isinstance(source, (str, Path)):
            with Path(source).open("rb") as file:
                return _decode(file, max_pixels)
        return _decode(io.BytesIO(source) if isinstance(source, bytes) else source, max_pixels)
    except ImageError:
        raise
    except FileNotFoundError:
        raise ImageError("no such file") from None
    except Image.DecompressionBombError:
        raise ImageError(f"is over the limit of {_LIMITS}") from None
    except UnidentifiedImageError:
        raise ImageError(
            f"is not a photo of a known format ({', '.join(IMAGE_FORMATS)}), or is cut short"
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
    """Convert any mode to 8-bit RGB."""
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
