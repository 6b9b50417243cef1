"""From a photo file to the network's input, and the geometry that leads back.

Photos are seen whole: they are squashed or letterboxed to the input size, never cropped at test
time; the random crop in training keeps most of the scene. Pixels are decoded by Pillow alone,
from an allow-list of formats, because torchvision's decoders can crash on damaged files.
"""

from __future__ import annotations

import io
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps, UnidentifiedImageError
from torch import Tensor

from captioner.data.heif import is_heif, register_heif
from captioner.errors import ImageError
from captioner.runtime.libtiff import silence_libtiff
from captioner.types import Geometry

# "JPEG" opens MPO files, the JPEGs of several pictures that phones write, too.
IMAGE_FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "AVIF")
IMAGE_SUFFIXES = frozenset(
    ".jpg .jpeg .jpe .jfif .png .gif .webp .bmp .tif .tiff .ppm .pgm .avif".split()
)
MAX_IMAGE_PIXELS = 89_478_485  # Pillow's own limit, above which it warns of a decompression bomb

ResizeMode = Literal["squash", "letterbox"]
Interpolation = Literal["bilinear", "bicubic", "lanczos"]
_RESAMPLING = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


class _WarningsOfPillow:
    """Within it, a decompression bomb is an error and complaints of tags are not printed.

    `warnings.catch_warnings` changes what the whole process does, and photos are read by several
    threads: the first in sets it, the last out sets it back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._caught = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._caught = warnings.catch_warnings()
                self._caught.__enter__()
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                warnings.simplefilter("ignore", UserWarning)  # harmless EXIF and TIFF tags
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._caught.__exit__(None, None, None)


_warnings_of_pillow = _WarningsOfPillow()


def open_image(source: str | Path | bytes | IO[bytes]) -> Image.Image:
    """Read a photo as upright 8-bit RGB.

    EXIF orientation is applied, CMYK and palettes are converted, 16-bit grey is scaled to 8 bits,
    transparency is laid on white, and of an animation the first frame is taken.

    Raises:
        ImageError: the file is missing, empty, no photo of an accepted format, damaged or larger
            than MAX_IMAGE_PIXELS. The message does not name the file: the caller does.
    """
    if isinstance(source, (str, Path)):
        path = Path(source)
        try:
            if path.is_dir():
                raise ImageError("is a folder, not a photo")
            if path.stat().st_size == 0:
                raise ImageError("the file is empty")
            with path.open("rb") as file:
                return open_image(file)
        except FileNotFoundError:
            raise ImageError("no such file") from None
        except OSError as error:
            raise ImageError(f"cannot be read ({error.strerror or error})") from None
        except ValueError as error:  # a zero byte in the name
            raise ImageError(f"cannot be read ({error})") from None
    if isinstance(source, bytes):
        source = io.BytesIO(source)
    # Pillow's decoders raise almost anything on hostile bytes (OSError, ValueError, SyntaxError,
    # struct.error, ...), so every exception here means one thing: this file cannot be decoded.
    with _warnings_of_pillow:
        try:
            formats: tuple[str, ...] = IMAGE_FORMATS
            if is_heif(source):
                if not register_heif():
                    raise ImageError(
                        "is a HEIC photo: install pillow-heif (pip install pillow-heif), or "
                        "convert it to JPEG"
                    )
                formats = ("HEIF",)
            with Image.open(source, formats=formats) as image:
                if image.width * image.height > MAX_IMAGE_PIXELS:
                    raise ImageError(_too_large(f"{image.width} x {image.height} pixels"))
                if image.format == "TIFF":
                    silence_libtiff()
                image.seek(0)
                image.load()
                ImageOps.exif_transpose(image, in_place=True)
                return _to_rgb(image)
        except ImageError:
            raise
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise ImageError(_too_large("the photo")) from None
        except UnidentifiedImageError:
            raise ImageError(
                f"is not a photo of a known format ({', '.join(IMAGE_FORMATS)}), or is cut short"
            ) from None
        except MemoryError:
            raise ImageError("does not fit in memory") from None
        except Exception as error:  # noqa: BLE001  (see above)
            raise ImageError(f"is damaged and cannot be decoded ({error})") from None


def _too_large(what: str) -> str:
    return f"{what} is over the limit of {MAX_IMAGE_PIXELS // 10**6} megapixels; make it smaller"


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith(("I", "F")):  # 16-bit and 32-bit grey; convert("RGB") would clip
        grey = np.asarray(image, dtype=np.float64)
        full_scale = 65535.0 if grey.max(initial=0) > 255 else 255.0
        if image.mode.startswith("I;16"):
            full_scale = 65535.0
        grey = np.nan_to_num(grey).clip(0, full_scale) * (255.0 / full_scale)
        return Image.fromarray(grey.round().astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


@dataclass(frozen=True)
class Augmentation:
    """Random changes in training. Each is off at its default.

    flip: probability of mirroring left to right.
    min_area: smallest share of the photo's area that a random crop keeps; 1 never crops. Kept
        near 1 so that what the caption names stays in view.
    colour: largest relative change of brightness, contrast and saturation.
    """

    flip: float = 0.0
    min_area: float = 1.0
    colour: float = 0.0


class ImageTransform:
    """Upright RGB photo to the network's normalised input, with its geometry.

    Source of the letterbox: the padding is the normalisation mean, so it becomes zeros.
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
        self.resampling = _RESAMPLING[interpolation]
        self.mean = np.asarray(mean, dtype=np.float32)
        self.std = np.asarray(std, dtype=np.float32)
        levels = np.arange(256, dtype=np.float32)[:, None] / 255.0
        # What each of the 256 values of a channel becomes: looking up is faster than computing.
        self._inputs = np.ascontiguousarray(((levels - self.mean) / self.std).T)
        self.augmentation = augmentation

    def __call__(
        self, photo: Image.Image, generator: np.random.Generator | None = None
    ) -> tuple[Tensor, Geometry]:
        """Return float32 [3, height_px, width_px] and the geometry.

        With a generator the photo is augmented; without one it is not, whatever the settings.
        """
        geometry = Geometry(photo.width, photo.height, 0, 0, photo.width, photo.height)
        if generator is not None and self.augmentation is not None:
            geometry = _random_view(geometry, self.augmentation, generator)
        pixels = self._resize(photo, geometry)
        if self.resize == "letterbox":
            geometry = self._letterboxed(geometry)
        if geometry.flipped:
            pixels = ImageOps.mirror(pixels)
        if generator is not None and self.augmentation is not None and self.augmentation.colour:
            pixels = _jitter(pixels, self.augmentation.colour, generator)
        array = self._normalised(np.asarray(pixels))
        if self.resize == "letterbox":
            array = self._pad(array)
        return torch.from_numpy(array), geometry

    def _normalised(self, pixels: np.ndarray) -> np.ndarray:
        """uint8 [height, width, 3] to float32 [3, height, width]: (x / 255 - mean) / std."""
        array = np.empty((3, *pixels.shape[:2]), dtype=np.float32)
        for channel, inputs in enumerate(self._inputs):
            # "clip" spares a check: no byte is out of the table
            np.take(inputs, pixels[..., channel], out=array[channel], mode="clip")
        return array

    def _content_size(self, geometry: Geometry) -> tuple[int, int]:
        """Width and height, in input pixels, that the photo takes inside the input."""
        if self.resize == "squash":
            return self.width_px, self.height_px
        scale = min(self.width_px / geometry.width_px, self.height_px / geometry.height_px)
        return (
            min(self.width_px, max(1, round(geometry.width_px * scale))),
            min(self.height_px, max(1, round(geometry.height_px * scale))),
        )

    def _resize(self, photo: Image.Image, geometry: Geometry) -> Image.Image:
        left, top = geometry.left_px, geometry.top_px
        box = (left, top, left + geometry.width_px, top + geometry.height_px)
        # reducing_gap lets Pillow halve huge photos cheaply before the exact filter.
        return photo.resize(
            self._content_size(geometry), self.resampling, box=box, reducing_gap=3.0
        )

    def _letterboxed(self, seen: Geometry) -> Geometry:
        """The rectangle of the photo that the padded input stands for."""
        width, height = self._content_size(seen)
        x_scale, y_scale = seen.width_px / width, seen.height_px / height
        pad_left, pad_top = (self.width_px - width) // 2, (self.height_px - height) // 2
        if seen.flipped:  # the mirrored content sits pad_left from the left, so undo it in order
            pad_left = self.width_px - width - pad_left
        return Geometry(
            photo_width_px=seen.photo_width_px,
            photo_height_px=seen.photo_height_px,
            left_px=seen.left_px - pad_left * x_scale,
            top_px=seen.top_px - pad_top * y_scale,
            width_px=self.width_px * x_scale,
            height_px=self.height_px * y_scale,
            flipped=seen.flipped,
        )

    def _pad(self, array: np.ndarray) -> np.ndarray:
        _, height, width = array.shape
        top, left = (self.height_px - height) // 2, (self.width_px - width) // 2
        padded = np.zeros((3, self.height_px, self.width_px), dtype=np.float32)
        padded[:, top : top + height, left : left + width] = array
        return padded


def _random_view(
    geometry: Geometry, augmentation: Augmentation, generator: np.random.Generator
) -> Geometry:
    """A random crop that keeps the photo's shape, and a random mirror image."""
    area = generator.uniform(augmentation.min_area, 1.0)
    flipped = bool(generator.random() < augmentation.flip)
    width, height = geometry.photo_width_px, geometry.photo_height_px
    side = area**0.5
    left, top = generator.random(2) * (1.0 - side)
    return Geometry(
        photo_width_px=width,
        photo_height_px=height,
        left_px=left * width,
        top_px=top * height,
        width_px=side * width,
        height_px=side * height,
        flipped=flipped,
    )


def _jitter(pixels: Image.Image, strength: float, generator: np.random.Generator) -> Image.Image:
    for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        pixels = enhance(pixels).enhance(1.0 + generator.uniform(-strength, strength))
    return pixels
