"""Photos of every kind, damaged ones too, to upright RGB."""

from __future__ import annotations

import io
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
import tiny
import torch
from PIL import Image
from tiny import encoded, noise

from captioner.data import images
from captioner.data.images import IMAGE_FORMATS, open_image, opened, png
from captioner.errors import ImageError
from captioner.runtime import parallel as passes

JPEG = encoded(Image.fromarray(noise(64, 64)), "JPEG")
PNG = encoded(Image.fromarray(noise(64, 64)), "PNG")
BAD_BYTES = {
    "empty": (b"", "is an empty file"),
    "text": (b"I am no photo.\n" * 9, "AVIF, HEIC with pillow-heif), or is cut short"),
    "truncated jpeg": (JPEG[: len(JPEG) // 2], "is damaged and cannot be decoded ("),
    "changed byte in png": (PNG[:9000] + b"?" + PNG[9001:], "is damaged and cannot be decoded ("),
}


@pytest.mark.parametrize("kind", BAD_BYTES)
def test_a_file_that_is_no_photo_ends_in_one_sentence(tmp_path: Path, kind: str) -> None:
    content, expected = BAD_BYTES[kind]
    path = tmp_path / "photo.jpg"
    path.write_bytes(content)
    message = tiny.sentence(ImageError, open_image, path)
    assert expected in message
    assert "photo.jpg" not in message, "the caller names the file"


@pytest.mark.parametrize("kind", [str, Path])
def test_an_address_is_said_to_be_one(kind: type[str] | type[Path]) -> None:
    with pytest.raises(ImageError, match=r"^is an address; download"):
        open_image(kind("https://example.org/dog.jpg"))


def pixels(source: str | Path | bytes) -> np.ndarray:
    photo = open_image(source)
    assert photo.mode == "RGB"
    return np.asarray(photo).astype(int)


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_rgb_comes_back_as_it_is(tmp_path: Path, format: str) -> None:
    array = noise(5, 9)
    path = tmp_path / "misnamed.jpg"
    path.write_bytes(encoded(Image.fromarray(array), format))
    for source in (path, str(path), path.read_bytes()):
        np.testing.assert_array_equal(pixels(source), array)


def test_16_bit_grey_is_scaled_and_not_clipped() -> None:
    grey = np.linspace(0, 65535, 64 * 64).round().astype(np.uint16).reshape(64, 64)
    for format in ("PNG", "TIFF"):
        found = pixels(encoded(Image.fromarray(grey), format))
        for channel in range(3):
            np.testing.assert_array_equal(found[..., channel], np.round(grey / 257.0))


def test_grey_of_floats_is_scaled_from_0_to_1_or_to_255() -> None:
    grey = np.linspace(0, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    for scale in (1, 255):
        found = pixels(encoded(Image.fromarray(grey * scale), "TIFF"))
        np.testing.assert_array_equal(found[..., 0], np.round(grey * 255))


def test_a_cmyk_jpeg_has_its_colours() -> None:
    cmyk = Image.new("CMYK", (16, 16), (0, 255, 255, 0))  # no cyan, all magenta, all yellow: red
    red = pixels(encoded(cmyk, "JPEG", quality=95))
    np.testing.assert_allclose(red.mean((0, 1)), (255, 0, 0), atol=12)


@pytest.mark.parametrize(("mode", "colour"), [("RGBA", (200, 30, 60)), ("LA", (90,))])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_transparency_lies_on_white(mode: str, colour: tuple[int, ...]) -> None:
    array = np.full((4, 8, len(mode)), (*colour, 255), np.uint8)
    array[:, 4:, -1] = 0  # the right half
    expected = np.full((4, 8, 3), 255)
    expected[:, :4] = colour
    np.testing.assert_array_equal(pixels(encoded(Image.fromarray(array, mode), "PNG")), expected)


def test_a_palette_s_transparent_colour_lies_on_white() -> None:
    image = Image.new("P", (8, 4), 1)
    image.putpalette([0, 0, 0, 200, 30, 60, 0, 255, 0])
    image.paste(2, (4, 0, 8, 4))
    for transparency in (2, bytes([255, 255, 0])):  # an index, or an alpha for each
        found = pixels(encoded(image, "PNG", transparency=transparency))
        np.testing.assert_array_equal(found[:, :4], np.broadcast_to((200, 30, 60), (4, 4, 3)))
        np.testing.assert_array_equal(found[:, 4:], 255)
    np.testing.assert_array_equal(pixels(encoded(image, "PNG"))[0, 7], (0, 255, 0))


ANIMATIONS = {"GIF": 0, "PNG": 0, "WEBP": 8}  # formats, and how far a level may be off


@pytest.mark.parametrize("format", ANIMATIONS)
@pytest.mark.parametrize("blank", ["white", "black", "transparent"])
def test_of_an_animation_the_first_frame_that_shows_something_is_taken(
    format: str, blank: str
) -> None:
    empty = Image.new("RGBA", (40, 24), (0, 0, 0, 0) if blank == "transparent" else blank)
    shown, later = empty.copy(), empty.copy()
    shown.paste("red", (0, 0, 40, 12))
    later.paste("blue", (0, 0, 40, 12))
    frames = [empty, shown, later]
    options = {"save_all": True, "append_images": frames[1:], "duration": 50, "disposal": 2}
    if format == "WEBP":
        del options["disposal"]
    found = pixels(encoded(frames[0], format, **options))
    expected = np.broadcast_to((255, 0, 0), (10, 40, 3))
    np.testing.assert_allclose(found[:10], expected, atol=ANIMATIONS[format])


# How the stored pixels become upright (TIFF 6.0, tag 274).
ORIENTATIONS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda stored: stored,
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.swapaxes(0, 1),
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: stored[::-1, ::-1].swapaxes(0, 1),
    8: lambda stored: np.rot90(stored),
}


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_exif_orientation_is_applied(orientation: int) -> None:
    stored = noise(4, 6)
    upright = ORIENTATIONS[orientation](stored)
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(Image.fromarray(stored), "PNG", exif=exif)
    np.testing.assert_array_equal(pixels(content), upright)
    jpeg = open_image(encoded(Image.fromarray(stored), "JPEG", exif=exif))
    assert jpeg.size == (upright.shape[1], upright.shape[0])


@pytest.mark.parametrize(
    ("width", "height", "format", "options", "scale"),
    [
        (1_800, 500, "PNG", {}, 2),
        (1_800, 500, "JPEG", {"progressive": True}, 2),
        (300, 6_000, "JPEG", {}, 2),
        (3_000, 1_300, "JPEG", {}, 4),
    ],
    ids=["png", "progressive", "twice Pillow's limit", "four times"],
)
def test_a_very_large_photo_is_read_at_a_fraction_of_its_size(
    width: int,
    height: int,
    format: str,
    options: dict[str, Any],
    scale: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Image.MAX_IMAGE_PIXELS == images.HALVED_FROM_PIXELS
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 894_784)  # a hundredth, as the photos are
    monkeypatch.setattr(images, "HALVED_FROM_PIXELS", 894_784)
    image = Image.new("L", (width, height), 90)
    image.paste(200, (0, 0, width // 2, height))
    photo = open_image(encoded(image, format, **options))
    assert (photo.mode, photo.size) == ("RGB", (width // scale, height // scale))
    assert abs(photo.getpixel((5, 5))[0] - 200) < 3
    assert abs(photo.getpixel((photo.width - 5, photo.height - 5))[0] - 90) < 3


HEADERS: dict[str, Callable[[int, int], bytes]] = {
    "BMP": lambda width, height: struct.pack("<II", width, height),
    "JPEG": lambda width, height: struct.pack(">HH", height, width),
}


@pytest.mark.parametrize(
    ("format", "size"), [("BMP", (12_000, 11_000)), ("JPEG", (30_000, 18_000))]
)
def test_a_photo_that_needs_too_much_memory_is_refused_with_its_size_and_the_limits(
    format: str, size: tuple[int, int]
) -> None:
    header, small = HEADERS[format], encoded(Image.new("L", (77, 88)), format)
    data = small.replace(header(77, 88), header(*size), 1)
    expected = rf"has {size[0]} x {size[1]} pixels, .* 120 megapixels \(500 for a JPEG"
    with pytest.raises(ImageError, match=expected):
        open_image(data)


def heic(file: Path, orientation: int = 1, **options: object) -> Image.Image:
    """Write a drawn photo as HEIC and return what a viewer shows of it."""
    pillow_heif.register_heif_opener()
    image = tiny.photo(2, 96, 64)[0]
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(file, format="HEIF", quality=95, exif=exif.tobytes(), **options)
    turned = {1: None, 3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_270}[orientation]
    return image if turned is None else image.transpose(turned)


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_heic_is_read_upright_by_path_and_bytes(tmp_path: Path, orientation: int) -> None:
    file = tmp_path / "phone.heic"
    expected = heic(file, orientation)
    for source in (file, str(file), file.read_bytes()):
        found = open_image(source)
        assert (found.mode, found.size) == ("RGB", expected.size)
        difference = np.asarray(found, dtype=float) - np.asarray(expected, dtype=float)
        assert np.abs(difference).mean() < 12  # noise, which the codec smooths
    with pytest.raises(ImageError, match="megapixels"):
        open_image(file, max_pixels=96 * 64 - 1)


def test_of_several_images_in_a_heic_file_the_primary_one_is_read(tmp_path: Path) -> None:
    """A burst's file shows the image that its owner chose, which need not be the first."""
    others = [Image.new("RGB", (64, 64), colour) for colour in ("red", "lime", "blue")]
    file = tmp_path / "burst.heic"
    pillow_heif.register_heif_opener()
    others[0].save(file, save_all=True, append_images=others[1:], primary_index=2)
    red, green, blue = np.asarray(open_image(file)).mean((0, 1))
    assert blue > 200 > 50 > max(red, green)


def damaged(data: bytes, generator: random.Random) -> bytes:
    """Return the file with one kind of damage: bytes, numbers, missing or exchanged parts."""
    changed = bytearray(data)
    here, there = (generator.randrange(len(changed)) for _ in range(2))
    kind = generator.randrange(5)
    if kind == 0:
        for _ in range(generator.choice((1, 2, 8, 64))):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
    elif kind == 1:  # headers are where sizes and counts are
        number = generator.choice((0, 1, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF))
        place = generator.randrange(min(64, len(changed)))
        changed[place : place + 4] = number.to_bytes(4, generator.choice(("big", "little")))
    elif kind == 2:
        del changed[here:]
    elif kind == 3:
        del changed[here : here + generator.randrange(1, 64)]
    else:
        changed[here : here + 32], changed[there : there + 32] = (
            changed[there : there + 32],
            changed[here : here + 32],
        )
    return bytes(changed)


@pytest.mark.parametrize("form", IMAGE_FORMATS)
@pytest.mark.parametrize(
    "count", [25, pytest.param(1300, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_mutated_images_are_read_or_refused(count: int, form: str) -> None:
    generator = random.Random(form)
    photo, refused = encoded(tiny.photo(1)[0], form), 0
    for _ in range(count):
        data = damaged(photo, generator)
        began = time.process_time()
        try:
            assert open_image(data, max_pixels=10_000_000).mode == "RGB"
        except ImageError as error:
            assert "\n" not in str(error)
            refused += 1
        assert time.process_time() - began < 10
    assert refused > 0


def test_a_png_reads_back_as_the_same_pixels() -> None:
    image = Image.fromarray(noise(9, 7))
    with Image.open(io.BytesIO(png(image))) as back:
        assert back.format == "PNG"
        assert back.tobytes() == image.tobytes()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_batches_keep_the_order_and_leave_out_unreadable_photos(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing touches the GPU: for it, photos are read by several threads."""
    monkeypatch.setattr(passes, "usable_cores", lambda: 4)
    monkeypatch.setattr(images, "BATCH_IMAGES", 3)
    paths = [tmp_path / f"{number}.png" for number in range(10)]
    for number, path in enumerate(paths):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(path)
    paths[4].write_bytes(b"no photo")
    paths[7].unlink()
    failed: list[tuple[int, str]] = []
    batches = list(
        opened(
            enumerate(paths),
            lambda key, error: failed.append((key, str(error))),
            torch.device(device),
        )
    )
    assert [[key for key, _ in batch] for batch in batches] == [[0, 1, 2], [3, 5, 6], [8, 9]]
    for key, image in (pair for batch in batches for pair in batch):
        assert np.asarray(image)[0, 0].tolist() == [key, 0, 0]
    assert [key for key, _ in failed] == [4, 7]
    assert "not a photo" in failed[0][1]
    assert failed[1][1] == "no such file"
