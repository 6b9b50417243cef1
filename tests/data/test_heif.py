"""Real HEIC files, as phones write them, with pillow-heif."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pillow_heif
import pytest
import tiny
from PIL import Image

from captioner.data.transforms import open_image
from captioner.errors import ImageError

ORIENTATION = 0x0112


def heic(file: Path, orientation: int = 1, **options: object) -> Image.Image:
    """Write a drawn photo as HEIC and return what a viewer shows of it."""
    pillow_heif.register_heif_opener()
    image = tiny.photo(2, 96, 64)[0]
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    image.save(file, format="HEIF", quality=95, exif=exif.tobytes(), **options)
    turned = {1: None, 3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_270}[orientation]
    return image if turned is None else image.transpose(turned)


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_it_is_read_upright_by_path_and_bytes(tmp_path: Path, orientation: int) -> None:
    file = tmp_path / "phone.heic"
    expected = heic(file, orientation)
    for source in (file, str(file), file.read_bytes()):
        found = open_image(source)
        assert (found.mode, found.size) == ("RGB", expected.size)
        difference = np.asarray(found, dtype=float) - np.asarray(expected, dtype=float)
        assert np.abs(difference).mean() < 12  # noise, which the codec smooths
    with pytest.raises(ImageError, match="megapixels"):
        open_image(file, max_pixels=96 * 64 - 1)


def test_of_several_images_it_is_the_primary_one(tmp_path: Path) -> None:
    """A burst's file shows the image that its owner chose, which need not be the first."""
    others = [Image.new("RGB", (64, 64), colour) for colour in ("red", "lime", "blue")]
    file = tmp_path / "burst.heic"
    pillow_heif.register_heif_opener()
    others[0].save(file, save_all=True, append_images=others[1:], primary_index=2)
    red, green, blue = np.asarray(open_image(file)).mean((0, 1))
    assert blue > 200 > 50 > max(red, green)
