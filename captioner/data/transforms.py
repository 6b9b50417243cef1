"""From an image file to the network's input, and the geometry that leads back.

Only Pillow decodes, from an allow-list of formats: torchvision's decoders crash on damaged files.
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
from PIL import Image, ImageEnhance, ImageOps, JpegImagePlugin, UnidentifiedImageError

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
    formats: tuple[str, ...] = IMAGE_FORMATS
    if is_heif(source):
        if not register_heif():
            raise ImageError(
                "is a HEIC photo: install pillow-heif (pip install pillow-heif), or convert it to "
                "JPEG"
            )
        formats = ("HEIF",)
    try:
        image: Image.Image = Image.open(source, formats=formats)
    except Image.DecompressionBombError:  # more than twice HALVED_FROM_PIXELS
        source.seek(0)
        if source.read(3) != b"\xff\xd8\xff":
            raise
        source.seek(0)
        image = JpegImagePlugin.JpegImageFile(source)
    with image:
        pixels = image.width * image.height
        if max_pixels is not None and pixels > max_pixels:
            raise ImageError(
                f"has {image.width} x {image.height} pixels and is over the limit of "
                f"{max_pixels / 10**6:g} megapixels; make it smaller"
            )
        baseline = image.format in ("JPEG", "MPO") and not image.info.get("progressive")
        if pixels > (MAX_JPEG_PIXELS if baseline else MAX_IMAGE_PIXELS):
            raise _too_large(pixels, f"{image.width} x {image.height} pixels, ")
        scale = 1  # a half, a quarter or an eighth
        while baseline and pixels > scale**2 * HALVED_FROM_PIXELS:
            scale *= 2
        if scale > 1:
            image.draft(None, (image.width // scale, image.height // scale))
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


def _load(image: Image.Image) -> Image.Image:
    """Decode the current frame as upright RGB, halved if it is large."""
    image.load()
    ImageOps.exif_transpose(image, in_place=True)
    if image.width * image.height <= HALVED_FROM_PIXELS:
        return _to_rgb(image)
    # Levels of a palette, or of black and white, cannot be averaged.
    return _to_rgb(image.reduce(2)) if image.mode in _AVERAGED else _to_rgb(image).reduce(2)


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
    if (pixels := image.width * image.height) > MAX_IMAGE_PIXELS:
        raise _too_large(pixels, f"{image.width} x {image.height} pixels, ")
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
            float32 [3, height_px, width_px], (x / 255 - mean) / std, and the rectangle of the image
            that it covers.
        """
        augmentation = self.augmentation if generator is not None else None
        view = Geometry(image.width, image.height, 0, 0, image.width, image.height)
        if augmentation and generator:
            view = _random_view(view, augmentation, generator)
        width, height = self.width_px, self.height_px
        if self.resize == "crop":
            view = self._centre_crop(view)
        elif self.resize == "letterbox":
            scale = min(width / view.width_px, height / view.height_px)
            width = min(width, max(1, round(view.width_px * scale)))
            height = min(height, max(1, round(view.height_px * scale)))
        # Sums may exceed the image by a rounding error, which Pillow refuses.
        right = min(view.left_px + view.width_px, image.width)
        bottom = min(view.top_px + view.height_px, image.height)
        # reducing_gap lets Pillow halve huge images cheaply before the exact filter.
        pixels = image.resize(
            (width, height),
            self.resampling,
            box=(view.left_px, view.top_px, right, bottom),
            reducing_gap=3.0,
        )
        if view.flipped:
            pixels = ImageOps.mirror(pixels)
        if augmentation and generator and augmentation.colour:
            for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
                factor = 1.0 + generator.uniform(-augmentation.colour, augmentation.colour)
                pixels = enhance(pixels).enhance(factor)
        left, top = (self.width_px - width) // 2, (self.height_px - height) // 2
        array = np.zeros((3, self.height_px, self.width_px), dtype=np.float32)
        levels = np.asarray(pixels)
        for channel, inputs in enumerate(self._inputs):
            place = array[channel, top : top + height, left : left + width]
            # "clip" spares a check: no byte is out of the table
            np.take(inputs, levels[..., channel], out=place, mode="clip")
        if self.resize == "letterbox":
            view = self._padded(view, width, height)
        return array, view

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

    def _padded(self, view: Geometry, width: int, height: int) -> Geometry:
        """Return the rectangle that the whole input covers if the view is in the middle of it.

        Args:
            width, height: Pixels of the input that the view takes.
        """
        x_scale, y_scale = view.width_px / width, view.height_px / height
        left, top = (self.width_px - width) // 2, (self.height_px - height) // 2
        if view.flipped:  # the mirrored content is `left` pixels from the left
            left = self.width_px - width - left
        return replace(
            view,
            left_px=view.left_px - left * x_scale,
            top_px=view.top_px - top * y_scale,
            width_px=self.width_px * x_scale,
            height_px=self.height_px * y_scale,
        )


def image_transform(
    config: PreprocessConfig, augmentation: Augmentation | None = None
) -> ImageTransform:
    """Build the transform of settings that `models.build.resolved` completed."""
    if config.mean is None or config.std is None or config.interpolation is None:
        raise ConfigError("preprocess: mean, std and interpolation must be given")
    return ImageTransform(**vars(config), augmentation=augmentation)


def _random_view(
    view: Geometry, augmentation: Augmentation, generator: np.random.Generator
) -> Geometry:
    """Draw a crop with the image's aspect ratio, and whether it is mirrored."""
    side = generator.uniform(augmentation.min_area, 1.0) ** 0.5
    flipped = bool(generator.random() < augmentation.flip)
    left, top = generator.random(2) * (1.0 - side)
    return replace(
        view,
        left_px=left * view.width_px,
        top_px=top * view.height_px,
        width_px=side * view.width_px,
        height_px=side * view.height_px,
        flipped=flipped,
    )
