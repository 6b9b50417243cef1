"""From an image file to the network's input, and the geometry that leads back.

Pixels are decoded by Pillow alone, from an allow-list of formats, because torchvision's decoders
can crash on damaged files.
"""

from __future__ import annotations

import io
import logging
import re
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from PIL import (
    ExifTags,
    Image,
    ImageEnhance,
    ImageOps,
    JpegImagePlugin,
    UnidentifiedImageError,
)

from captioner.config import Interpolation, PreprocessConfig, ResizeMode
from captioner.data.codecs import is_heif, register_heif, silence_libtiff
from captioner.data.tars import ImagePath, TarMember
from captioner.errors import ConfigError, ImageError
from captioner.types import Geometry

if TYPE_CHECKING:
    from torch import Tensor

# "JPEG" opens MPO files, the JPEGs of several pictures that phones write, too.
IMAGE_FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "AVIF")
IMAGE_SUFFIXES = frozenset(
    ".jpg .jpeg .jpe .jfif .png .gif .webp .bmp .tif .tiff .ppm .pgm .avif".split()
)
MAX_IMAGE_PIXELS = 120_000_000  # decoded whole: 360 MB of memory
MAX_JPEG_PIXELS = 500_000_000  # of baseline JPEGs, which are decoded at a fraction of their size
HALVED_FROM_PIXELS = 89_478_485  # larger photos are halved; above it Pillow warns of a bomb

MIN_CONTRAST = 8.0  # standard deviation of the 256 levels; a frame with less shows nothing
MAX_BLANK_FRAMES = 100
MAX_ROUGHNESS = 0.6  # variance of neighbours' differences over that of white noise

# Pillow also logs some of the errors that it raises; Python prints them without a handler. It warns
# of harmless EXIF tags, and of large photos, for which the limits above are ours.
logging.getLogger("PIL").addHandler(logging.NullHandler())
warnings.filterwarnings("ignore", module=r"PIL\.")

_AVERAGED = ("L", "LA", "RGB", "RGBA", "CMYK", "YCbCr")

_RESAMPLING = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def open_image(
    source: str | ImagePath | bytes | IO[bytes], *, max_pixels: int | None = None
) -> Image.Image:
    """Read an image file as upright 8-bit RGB.

    EXIF orientation is applied, CMYK and palettes are converted, 16-bit grey is scaled to 8 bits,
    transparency is laid on white, and of an animation the first frame that shows something is
    taken. A photo of more than HALVED_FROM_PIXELS is returned at half its size or less.

    Args:
        source: A path, a place in a tar file, the bytes of a file, or a file object that can seek.
        max_pixels: A lower limit than those of this module.

    Raises:
        DataError: A tar file cannot be read.
        ImageError: The file is missing, empty, not an image of an accepted format, damaged or too
            large (over MAX_IMAGE_PIXELS; for baseline JPEGs, MAX_JPEG_PIXELS). The message does not
            name the file: the caller does.
    """
    if isinstance(source, (str, Path)):
        path = Path(source)
        try:
            if path.exists() and not path.is_file():
                raise ImageError("is a folder or a device, not a photo")
            with path.open("rb") as file:
                return open_image(file, max_pixels=max_pixels)
        except FileNotFoundError:
            raise ImageError("no such file") from None
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
            raise ImageError(f"cannot be read ({getattr(error, 'strerror', error)})") from None
    if isinstance(source, TarMember):
        source = source.read_bytes()
    if isinstance(source, bytes):
        source = io.BytesIO(source)
    # Pillow's decoders raise almost anything on hostile bytes (OSError, ValueError, SyntaxError,
    # struct.error, ...), so every exception here means one thing: this file cannot be decoded.
    try:
        return _decode(source, max_pixels)
    except ImageError:
        raise
    except Image.DecompressionBombError as error:
        pixels = re.search(r"\d+", str(error))
        raise _too_large(int(pixels[0]) if pixels else MAX_IMAGE_PIXELS) from None
    except UnidentifiedImageError:
        raise ImageError(
            f"is not a photo of a known format ({', '.join(IMAGE_FORMATS)}), or is cut short"
        ) from None
    except MemoryError:
        raise ImageError("does not fit in memory") from None
    except Exception as error:  # noqa: BLE001  (see above)
        raise ImageError(f"is damaged and cannot be decoded ({error})") from None


def _decode(source: IO[bytes], max_pixels: int | None) -> Image.Image:
    """Decode an open file as upright RGB; raise what Pillow raises, or an ImageError."""
    if not source.seek(0, io.SEEK_END):
        raise ImageError("the file is empty")
    try:
        image: Image.Image = Image.open(source, formats=accepted_formats(source))
    except Image.DecompressionBombError:  # more than twice HALVED_FROM_PIXELS
        source.seek(0)
        if source.read(3) != b"\xff\xd8\xff":
            raise
        source.seek(0)
        image = JpegImagePlugin.JpegImageFile(source)
    with image:
        if max_pixels is not None and image.width * image.height > max_pixels:
            raise ImageError(
                f"has {image.width} x {image.height} pixels and is over the limit of "
                f"{max_pixels / 10**6:g} megapixels; make it smaller"
            )
        if image.format in ("JPEG", "MPO") and not image.info.get("progressive"):
            _check_size(image, MAX_JPEG_PIXELS)
            scale = 1  # a half, a quarter or an eighth
            while image.width * image.height > scale**2 * HALVED_FROM_PIXELS:
                scale *= 2
            if scale > 1:
                image.draft(None, (image.width // scale, image.height // scale))
        _check_size(image)
        if image.format == "TIFF":
            silence_libtiff()
        if image.format != "HEIF":  # opens at its primary image, not always the first
            image.seek(0)
        photo = _load(image)
        if image.format in ("GIF", "WEBP", "PNG", "AVIF") and getattr(image, "is_animated", False):
            photo = _first_frame_with_contrast(image, photo)
        return photo


def _first_frame_with_contrast(animation: Image.Image, first: Image.Image) -> Image.Image:
    """Return the first frame of an animation that is not blank, as RGB.

    If all are, it is the one with the most contrast; frames behind a damaged one do not count.
    """
    best, most = first, _contrast(first)
    for number in range(1, MAX_BLANK_FRAMES):
        if most >= MIN_CONTRAST:
            break
        try:
            animation.seek(number)
            frame = _load(animation.copy())
        except Exception:  # noqa: BLE001  the last frame, or as in open_image
            break
        if (contrast := _contrast(frame)) > most:
            best, most = frame, contrast
    return best


def _contrast(image: Image.Image) -> float:
    """Return the standard deviation of the channel that varies most, of 256 levels."""
    small = image.resize((64, 64), Image.Resampling.BOX, reducing_gap=2.0)
    return float(np.asarray(small).std(axis=(0, 1)).max())


def accepted_formats(file: IO[bytes]) -> tuple[str, ...]:
    """Return the formats that Pillow may take an open file for.

    Raises:
        ImageError: It is a HEIC photo, and pillow-heif is not installed.
    """
    if not is_heif(file):
        return IMAGE_FORMATS
    if not register_heif():
        raise ImageError(
            "is a HEIC photo: install pillow-heif (pip install pillow-heif), or convert it to JPEG"
        )
    return ("HEIF",)


def _load(image: Image.Image) -> Image.Image:
    image.load()
    ImageOps.exif_transpose(image, in_place=True)
    if image.width * image.height <= HALVED_FROM_PIXELS:
        return _to_rgb(image)
    # Levels of a palette, or of black and white, cannot be averaged.
    return _to_rgb(image.reduce(2)) if image.mode in _AVERAGED else _to_rgb(image).reduce(2)


def _check_size(image: Image.Image, limit: int = MAX_IMAGE_PIXELS) -> None:
    if image.width * image.height > limit:
        raise _too_large(image.width * image.height, f"{image.width} x {image.height} pixels, ")


def _too_large(pixels: int, size: str = "") -> ImageError:
    return ImageError(
        f"has {size}{pixels / 10**6:.0f} megapixels, over the limit of "
        f"{MAX_IMAGE_PIXELS // 10**6} ({MAX_JPEG_PIXELS // 10**6} for a JPEG that is not "
        "progressive); make it smaller"
    )


def upright_rgb(image: Image.Image) -> Image.Image:
    """Return a PIL image of any mode as `open_image` would read it from a file.

    Raises:
        ImageError: It is too large, or cannot be decoded.
    """
    _check_size(image)
    try:
        image.load()
        plain = image.mode == "RGB" and "transparency" not in image.info
        if plain and image.getexif().get(ExifTags.Base.Orientation, 1) == 1:
            return image
        return _to_rgb(ImageOps.exif_transpose(image))
    except Exception as error:  # noqa: BLE001  (as in open_image)
        raise ImageError(f"cannot be decoded ({error})") from None


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to 8-bit RGB."""
    if image.mode.startswith(("I", "F")):  # 16-bit and 32-bit grey; convert("RGB") would clip
        grey = np.nan_to_num(np.asarray(image, dtype=np.float64))
        full_scale = 65535.0 if image.mode.startswith("I;16") or grey.max() > 255 else 255.0
        grey = grey.clip(0, full_scale) * (255.0 / full_scale)
        return Image.fromarray(grey.round().astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


@dataclass(frozen=True)
class Augmentation:
    """Random changes of training images, as in `DataConfig`. Each is off at its default."""

    flip: float = 0.0
    min_area: float = 1.0
    colour: float = 0.0


class ImageTransform:
    """Upright RGB image to the network's normalised input, with its geometry.

    Args:
        height_px, width_px, resize, interpolation, mean, std: As in `PreprocessConfig`; `letterbox`
            pads with the mean, which normalisation makes zero.
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
        self.resampling = _RESAMPLING[interpolation]
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
            float32 [3, height_px, width_px], and the rectangle of the image that it covers.
        """
        geometry = Geometry(image.width, image.height, 0, 0, image.width, image.height)
        if generator is not None and self.augmentation is not None:
            geometry = _random_view(geometry, self.augmentation, generator)
        if self.resize == "crop":
            geometry = self._centre_crop(geometry)
        pixels = self._resize(image, geometry)
        if self.resize == "letterbox":
            geometry = self._letterboxed(geometry)
        if geometry.flipped:
            pixels = ImageOps.mirror(pixels)
        if generator is not None and self.augmentation is not None and self.augmentation.colour:
            pixels = _jitter_colours(pixels, self.augmentation.colour, generator)
        array = self._normalised(np.asarray(pixels))
        if self.resize == "letterbox":
            array = self._pad(array)
        return array, geometry

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

    def _normalised(self, pixels: np.ndarray) -> np.ndarray:
        """Map uint8 [height, width, 3] to float32 [3, height, width]: (x / 255 - mean) / std."""
        array = np.empty((3, *pixels.shape[:2]), dtype=np.float32)
        for channel, inputs in enumerate(self._inputs):
            # "clip" spares a check: no byte is out of the table
            np.take(inputs, pixels[..., channel], out=array[channel], mode="clip")
        return array

    def _content_size(self, geometry: Geometry) -> tuple[int, int]:
        """Return width and height, in input pixels, that the image takes inside the input."""
        if self.resize != "letterbox":
            return self.width_px, self.height_px
        scale = min(self.width_px / geometry.width_px, self.height_px / geometry.height_px)
        return (
            min(self.width_px, max(1, round(geometry.width_px * scale))),
            min(self.height_px, max(1, round(geometry.height_px * scale))),
        )

    def _resize(self, image: Image.Image, geometry: Geometry) -> Image.Image:
        """Resize the rectangle of the geometry to the size that it takes in the input."""
        left, top = geometry.left_px, geometry.top_px
        # Sums may exceed the image by a rounding error, which Pillow refuses.
        right = min(left + geometry.width_px, image.width)
        bottom = min(top + geometry.height_px, image.height)
        # reducing_gap lets Pillow halve huge images cheaply before the exact filter.
        return image.resize(
            self._content_size(geometry),
            self.resampling,
            box=(left, top, right, bottom),
            reducing_gap=3.0,
        )

    def _centre_crop(self, view: Geometry) -> Geometry:
        """Return the largest rectangle in the middle of the view with the input's aspect ratio.

        Resizing it to the input is resizing the shorter side and cropping the centre, without
        rounding to whole pixels in between.
        """
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

    def _letterboxed(self, view: Geometry) -> Geometry:
        """Return the rectangle that the padded input covers, larger than the image."""
        width, height = self._content_size(view)
        x_scale, y_scale = view.width_px / width, view.height_px / height
        pad_left, pad_top = (self.width_px - width) // 2, (self.height_px - height) // 2
        if view.flipped:  # the mirrored content sits pad_left from the left, so undo it in order
            pad_left = self.width_px - width - pad_left
        return replace(
            view,
            left_px=view.left_px - pad_left * x_scale,
            top_px=view.top_px - pad_top * y_scale,
            width_px=self.width_px * x_scale,
            height_px=self.height_px * y_scale,
        )

    def _pad(self, array: np.ndarray) -> np.ndarray:
        """Centre an array [3, h, w] on zeros of the input's size."""
        _, height, width = array.shape
        top, left = (self.height_px - height) // 2, (self.width_px - width) // 2
        padded = np.zeros((3, self.height_px, self.width_px), dtype=np.float32)
        padded[:, top : top + height, left : left + width] = array
        return padded


def image_transform(
    config: PreprocessConfig, augmentation: Augmentation | None = None
) -> ImageTransform:
    """Build the transform of settings that `models.build.resolved` completed."""
    if config.mean is None or config.std is None or config.interpolation is None:
        raise ConfigError("preprocess: mean, std and interpolation must be given")
    return ImageTransform(**vars(config), augmentation=augmentation)


def _random_view(
    geometry: Geometry, augmentation: Augmentation, generator: np.random.Generator
) -> Geometry:
    """Draw a crop with the image's aspect ratio, and whether it is mirrored."""
    area = generator.uniform(augmentation.min_area, 1.0)
    flipped = bool(generator.random() < augmentation.flip)
    width, height = geometry.photo_width_px, geometry.photo_height_px
    side = area**0.5
    left, top = generator.random(2) * (1.0 - side)
    return replace(
        geometry,
        left_px=left * width,
        top_px=top * height,
        width_px=side * width,
        height_px=side * height,
        flipped=flipped,
    )


def _jitter_colours(
    pixels: Image.Image, strength: float, generator: np.random.Generator
) -> Image.Image:
    for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        pixels = enhance(pixels).enhance(1.0 + generator.uniform(-strength, strength))
    return pixels
