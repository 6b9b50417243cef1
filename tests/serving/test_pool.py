"""Decoding and drawing in other processes: what is refused, and that nothing takes the pool down."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import struct
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from exploit import Exploit
from PIL import Image

from captioner.data.transforms import ImageTransform, open_image
from captioner.serving import worker
from captioner.serving.pool import DecodedImage, ImageDecoder, Painter, WorkerCrashError
from captioner.serving.problems import Problem
from captioner.types import Caption, Geometry
from captioner.visualization import attention_sheet

TRANSFORM = ImageTransform(height_px=64, width_px=96)
LONG = 200  # words, which take a painter more than worker.SLOW_CPU_S


@pytest.fixture(scope="module")
def decoder() -> Iterator[ImageDecoder]:
    decoder = ImageDecoder(max_pixels=1_000_000, time_limit_s=20, workers=1)
    yield decoder
    decoder.close()


def decode(decoder: ImageDecoder, data: bytes, preview_px: int = 0) -> DecodedImage:
    return asyncio.run(decoder.decode(data, TRANSFORM, preview_px=preview_px))


def refused(decoder: ImageDecoder, data: bytes) -> tuple[int, str]:
    with pytest.raises(Problem) as problem:
        decode(decoder, data)
    return problem.value.status, problem.value.detail


def file_of(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format=form, **options)
    return file.getvalue()


def test_a_photo_is_read_as_python_reads_it_bit_for_bit(
    decoder: ImageDecoder, drawn_photos: Path
) -> None:
    data = (drawn_photos / "01.jpg").read_bytes()
    expected, geometry = TRANSFORM(open_image(data))
    photo = decode(decoder, data)
    np.testing.assert_array_equal(photo.pixels, expected)
    assert photo.geometry == geometry
    assert photo.preview is None


def test_the_picture_is_the_upright_photo_no_larger_than_asked(decoder: ImageDecoder) -> None:
    image, _ = tiny.photo(2, width=60, height=48)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned
    data = file_of(image, exif=exif.tobytes())
    small = decode(decoder, data, preview_px=30).preview
    whole = decode(decoder, data, preview_px=1000).preview
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
    decoder: ImageDecoder, data: bytes, status: int, told: str
) -> None:
    found, detail = refused(decoder, data)
    assert (found, told in detail) == (status, True), detail


def png_that_claims(width: int, height: int) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        check = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [1001, 20_000, 60_000, 2**31 - 1])
def test_a_bomb_is_refused_by_its_header(decoder: ImageDecoder, side: int) -> None:
    status, detail = refused(decoder, png_that_claims(side, side))
    assert status == 422
    assert "megapixels" in detail


def kill(decoder: ImageDecoder, number: int = signal.SIGKILL) -> None:
    """Send a signal to every process of the decoder, as a segmentation fault would."""
    for pid in decoder.process_ids:
        os.kill(pid, number)


def test_a_process_found_dead_costs_nobody_a_request(
    decoder: ImageDecoder, drawn_photos: Path
) -> None:
    photo = (drawn_photos / "01.jpg").read_bytes()
    before = decoder.process_ids
    for _ in range(3):  # at once: the process may die before or while it is given the image
        kill(decoder)
        assert decode(decoder, photo).pixels.shape == (3, 64, 96)
    assert len(decoder.process_ids) == len(before)
    assert set(decoder.process_ids).isdisjoint(before)


def test_a_file_that_crashes_two_processes_is_called_damaged(drawn_photos: Path) -> None:
    photo = (drawn_photos / "01.jpg").read_bytes()
    decoder = ImageDecoder(max_pixels=10**6, time_limit_s=20, workers=1)
    lost: set[int] = set()
    stop = threading.Event()

    def crash() -> None:  # every process that is started while the first image is decoded
        while not stop.is_set():
            for pid in decoder.process_ids:
                if pid not in lost:
                    lost.add(pid)
                    os.kill(pid, signal.SIGKILL)

    crashing = threading.Thread(target=crash)
    crashing.start()
    try:
        status, detail = refused(decoder, photo)
    finally:
        stop.set()
        crashing.join()
    try:
        assert (status, "crashed" in detail) == (422, True)
        assert len(lost) >= 2
        assert decode(decoder, photo).pixels.shape == (3, 64, 96)
    finally:
        decoder.close()


def test_a_decoder_that_hangs_is_ended_and_replaced(drawn_photos: Path) -> None:
    photo = (drawn_photos / "01.jpg").read_bytes()
    decoder = ImageDecoder(max_pixels=10**6, time_limit_s=0.3, workers=1)
    try:
        kill(decoder, signal.SIGSTOP)
        status, detail = refused(decoder, photo)
        assert (status, "more than 0.3 s" in detail) == (422, True)
        kill(decoder, signal.SIGSTOP)
        big = photo + b"\0" * 5_000_000  # more than a pipe holds: it hangs while it is sent
        assert refused(decoder, big)[0] == 422
        decoder.time_limit_s = 20
        assert decode(decoder, photo).pixels.shape == (3, 64, 96)
    finally:
        decoder.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no niceness")
def test_a_long_task_makes_way_for_others_and_its_process_is_replaced() -> None:
    painter = Painter(time_limit_s=120, workers=1)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        draw(painter, "png", words=2)
        (slow,) = painter.process_ids
        assert os.getpriority(os.PRIO_PROCESS, slow) == own
        draw(painter, "gif", words=LONG)
        assert os.getpriority(os.PRIO_PROCESS, slow) == own + worker.LOW_PRIORITY
        draw(painter, "png", words=2)
        (fresh,) = painter.process_ids
        assert fresh != slow
        assert os.getpriority(os.PRIO_PROCESS, fresh) == own
    finally:
        painter.close()


@pytest.mark.parametrize(
    "answer", [b"[]", b"[1]", b"null", b"{}", b"words", b"[" * 100_000, b'{"parts": -1}x']
)
def test_a_process_whose_answer_makes_no_sense_is_replaced(
    decoder: ImageDecoder, drawn_photos: Path, answer: bytes
) -> None:
    photo = (drawn_photos / "01.jpg").read_bytes()
    before = decoder.process_ids
    with pytest.raises(Problem) as problem:
        asyncio.run(decoder.decode(photo, Exploit(answer)))  # type: ignore[arg-type]
    assert (problem.value.status, "damaged" in problem.value.detail) == (422, True)
    assert set(decoder.process_ids).isdisjoint(before)
    assert decode(decoder, photo).pixels.shape == (3, 64, 96)


def test_a_photo_that_does_not_fit_in_memory_costs_its_own_request(drawn_photos: Path) -> None:
    decoder = ImageDecoder(
        max_pixels=80_000_000, time_limit_s=60, memory_bytes=64 * 2**20, workers=1
    )
    try:
        status, detail = refused(decoder, file_of(Image.new("1", (8000, 8000))))
        assert status == 422, detail
        photo = (drawn_photos / "01.jpg").read_bytes()
        assert decode(decoder, photo).pixels.shape == (3, 64, 96)
    finally:
        decoder.close()


def test_damaged_files_of_every_kind_are_read_or_refused(decoder: ImageDecoder) -> None:
    image, _ = tiny.photo(1)
    generator = torch.Generator().manual_seed(5)
    for form in ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "AVIF"):
        whole = file_of(image, form)
        assert decode(decoder, whole).pixels.shape == (3, 64, 96), form
        for _ in range(6):
            data = bytearray(whole)
            for place in torch.randint(len(data), (8,), generator=generator).tolist():
                data[place] ^= 0xFF
            try:
                decode(decoder, bytes(data))
            except Problem as problem:
                assert problem.status in (415, 422)


def test_many_at_once_are_not_mixed_up(drawn_photos: Path) -> None:
    decoder = ImageDecoder(max_pixels=10**6, time_limit_s=60, workers=2)
    files = [(drawn_photos / f"{n:02d}.jpg").read_bytes() for n in range(6)] * 4

    async def all_of_them() -> list[DecodedImage]:
        return await asyncio.gather(
            *(decoder.decode(data, TRANSFORM, client=str(n)) for n, data in enumerate(files))
        )

    try:
        for data, photo in zip(files, asyncio.run(all_of_them()), strict=True):
            np.testing.assert_array_equal(photo.pixels, TRANSFORM(open_image(data))[0])
    finally:
        decoder.close()


def a_caption(image: Image.Image, words: int) -> Caption:
    maps = np.random.default_rng(1).random((words, 4, 5), dtype=np.float32)
    return Caption(
        words=["disc"] * words,
        maps=maps / maps.sum((1, 2), keepdims=True),
        beta=None,
        log_probs=np.full(words, -1, np.float32),
        geometry=Geometry(*image.size, 0, 0, *image.size),
    )


def draw(painter: Painter, form: str, words: int) -> tuple[bytes, str]:
    image = tiny.photo(1)[0]
    return asyncio.run(painter.draw(form, image, a_caption(image, words), "tiny"))


def test_pictures_are_those_of_python(drawn_photos: Path) -> None:
    painter = Painter(time_limit_s=60, workers=1)
    image = tiny.photo(1)[0]
    try:
        content, media_type = draw(painter, "png", 3)
        expected = attention_sheet(image, a_caption(image, 3))
        assert media_type == "image/png"
        assert Image.open(io.BytesIO(content)).tobytes() == expected.tobytes()
    finally:
        painter.close()


def test_a_sheet_on_a_reduced_photo_states_the_size_of_the_original() -> None:
    painter = Painter(time_limit_s=60, workers=1)
    image = tiny.photo(1)[0]
    caption, original_size = a_caption(image, 3), (4 * image.width, 4 * image.height)
    large = replace(caption, geometry=caption.geometry.scaled(*original_size))
    try:
        content, _ = asyncio.run(painter.draw("png", image, large, "tiny"))
    finally:
        painter.close()
    expected = attention_sheet(image, caption, original_size=original_size)
    assert Image.open(io.BytesIO(content)).tobytes() == expected.tobytes()
    assert expected.tobytes() != attention_sheet(image, caption).tobytes()


def test_drawing_is_limited_in_time(drawn_photos: Path) -> None:
    painter = Painter(time_limit_s=0.3, workers=1)
    try:
        began = time.monotonic()
        with pytest.raises(Problem) as problem:
            draw(painter, "gif", 500)
        assert problem.value.status == 504
        assert time.monotonic() - began < 20
        painter.time_limit_s = 60
        assert draw(painter, "html", 2)[1] == "text/html"
    finally:
        painter.close()


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux alone")
def test_drawing_is_limited_in_memory() -> None:
    painter = Painter(time_limit_s=120, memory_bytes=100 * 2**20, workers=1)
    try:
        with pytest.raises(Problem) as problem:
            draw(painter, "png", 3000)
        assert (problem.value.status, "memory" in problem.value.detail) == (422, True)
        assert draw(painter, "html", 2)[1] == "text/html"
    finally:
        painter.close()


def test_a_call_that_is_cancelled_frees_its_process_at_once() -> None:
    painter = Painter(time_limit_s=120, workers=1)
    image = tiny.photo(1)[0]

    async def run() -> float:
        endless = asyncio.create_task(painter.draw("gif", image, a_caption(image, 2000), "tiny"))
        await asyncio.sleep(0.5)
        endless.cancel()
        began = time.monotonic()
        await painter.draw("html", image, a_caption(image, 2), "tiny")
        return time.monotonic() - began

    try:
        assert asyncio.run(run()) < 10
    finally:
        painter.close()


def test_closing_does_not_wait_for_what_is_drawn() -> None:
    painter = Painter(time_limit_s=120, workers=1)
    image = tiny.photo(1)[0]

    async def run() -> float:
        endless = asyncio.create_task(painter.draw("gif", image, a_caption(image, 2000), "tiny"))
        await asyncio.sleep(0.5)
        began = time.monotonic()
        await asyncio.to_thread(painter.close)
        taken = time.monotonic() - began
        with pytest.raises(WorkerCrashError):
            await endless
        return taken

    assert asyncio.run(run()) < 10
