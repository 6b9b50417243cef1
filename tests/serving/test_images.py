"""Strangers' bytes: what is refused, and that nothing takes the reader down."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
import torch
from PIL import Image

from captioner.data.transforms import ImageTransform, open_image
from captioner.serving.images import PhotoReader, ReadPhoto
from captioner.serving.problems import Problem

TRANSFORM = ImageTransform(height_px=64, width_px=96)


@pytest.fixture(scope="module")
def reader() -> Iterator[PhotoReader]:
    reader = PhotoReader(max_pixels=1_000_000, time_limit_s=20, workers=1)
    yield reader
    reader.close()


def read(reader: PhotoReader, data: bytes, picture_px: int = 0) -> ReadPhoto:
    return asyncio.run(reader.read(data, TRANSFORM, picture_px=picture_px))


def refused(reader: PhotoReader, data: bytes) -> tuple[int, str]:
    with pytest.raises(Problem) as problem:
        read(reader, data)
    return problem.value.status, problem.value.detail


def file_of(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format=form, **options)
    return file.getvalue()


def test_a_photo_is_read_as_python_reads_it_bit_for_bit(
    reader: PhotoReader, drawn_photos: Path
) -> None:
    data = (drawn_photos / "01.jpg").read_bytes()
    expected, geometry = TRANSFORM(open_image(data))
    photo = read(reader, data)
    assert torch.equal(photo.pixels, expected)
    assert photo.geometry == geometry
    assert photo.picture is None


def test_the_picture_is_the_upright_photo_no_larger_than_asked(reader: PhotoReader) -> None:
    image, _ = tiny.photo(2, width=60, height=48)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned
    data = file_of(image, exif=exif.tobytes())
    small = read(reader, data, picture_px=30).picture
    whole = read(reader, data, picture_px=1000).picture
    assert small is not None
    assert whole is not None
    assert small.size == (24, 30)
    assert whole.tobytes() == open_image(data).tobytes()


@pytest.mark.parametrize(
    ("data", "status", "told"),
    [
        (b"", 422, "no photo"),
        (b"just some words", 415, "known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 415, "known format"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415, "known format"),
        (b"\xff\xd8\xff\xe0", 415, "known format"),
        (file_of(tiny.photo(1)[0])[:200], 422, "damaged"),
        (file_of(Image.new("L", (1001, 1000))), 422, "1001 x 1000 pixels"),
    ],
)
def test_what_is_no_photo_is_refused_in_one_sentence(
    reader: PhotoReader, data: bytes, status: int, told: str
) -> None:
    found, detail = refused(reader, data)
    assert (found, told in detail) == (status, True), detail


def png_that_claims(width: int, height: int) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        check = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [1001, 20_000, 60_000, 2**31 - 1])
def test_a_bomb_is_refused_by_its_header(reader: PhotoReader, side: int) -> None:
    status, detail = refused(reader, png_that_claims(side, side))
    assert status == 422
    assert "megapixels" in detail


def test_a_reader_survives_the_death_of_its_process(
    reader: PhotoReader, drawn_photos: Path
) -> None:
    photo = (drawn_photos / "01.jpg").read_bytes()
    worker = reader._idle.get()
    os.kill(worker._process.pid, signal.SIGKILL)  # as a segmentation fault in a decoder would
    worker._process.join()
    reader._idle.put(worker)
    status, detail = refused(reader, photo)
    assert (status, "crashed" in detail) == (422, True)
    assert read(reader, photo).pixels.shape == (3, 64, 96)


def test_a_decoder_that_hangs_is_ended_and_replaced(drawn_photos: Path) -> None:
    photo = (drawn_photos / "01.jpg").read_bytes()
    reader = PhotoReader(max_pixels=10**6, time_limit_s=0.3, workers=1)
    try:
        worker = reader._idle.get()
        os.kill(worker._process.pid, signal.SIGSTOP)
        reader._idle.put(worker)
        status, detail = refused(reader, photo)
        assert (status, "more than 0.3 s" in detail) == (422, True)
        reader.time_limit_s = 20
        assert read(reader, photo).pixels.shape == (3, 64, 96)
    finally:
        reader.close()


def test_a_photo_that_does_not_fit_in_memory_costs_its_own_request(drawn_photos: Path) -> None:
    reader = PhotoReader(max_pixels=80_000_000, time_limit_s=60, memory_bytes=64 * 2**20, workers=1)
    try:
        status, detail = refused(reader, file_of(Image.new("1", (8000, 8000))))
        assert status == 422, detail
        photo = (drawn_photos / "01.jpg").read_bytes()
        assert read(reader, photo).pixels.shape == (3, 64, 96)
    finally:
        reader.close()


def test_damaged_files_of_every_kind_are_read_or_refused(reader: PhotoReader) -> None:
    image, _ = tiny.photo(1)
    generator = torch.Generator().manual_seed(5)
    for form in ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "AVIF"):
        whole = file_of(image, form)
        assert read(reader, whole).pixels.shape == (3, 64, 96), form
        for _ in range(6):
            data = bytearray(whole)
            for place in torch.randint(len(data), (8,), generator=generator).tolist():
                data[place] ^= 0xFF
            try:
                read(reader, bytes(data))
            except Problem as problem:
                assert problem.status in (415, 422)


def test_many_at_once_are_not_mixed_up(drawn_photos: Path) -> None:
    reader = PhotoReader(max_pixels=10**6, time_limit_s=60, workers=2)
    files = [(drawn_photos / f"{n:02d}.jpg").read_bytes() for n in range(6)] * 4

    async def all_of_them() -> list[ReadPhoto]:
        return await asyncio.gather(*(reader.read(data, TRANSFORM) for data in files))

    try:
        for data, photo in zip(files, asyncio.run(all_of_them()), strict=True):
            assert torch.equal(photo.pixels, TRANSFORM(open_image(data))[0])
    finally:
        reader.close()
