"""Mutated images through the service's decoder: each is read or refused, and nothing crashes or hangs."""

from __future__ import annotations

import asyncio
import io
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import mutations
import pytest
import tiny

from captioner.data.transforms import ImageTransform
from captioner.serving.pool import ImageDecoder
from captioner.serving.problems import Problem

FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "AVIF")
TIME_LIMIT_S = 10.0  # as in the server
TRANSFORM = ImageTransform(height_px=64, width_px=96)


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


async def outcomes_of(decoder: ImageDecoder, files: Iterable[bytes]) -> Counter[str]:
    """Decode files, two at a time, and count what came of them."""
    outcomes: Counter[str] = Counter()
    free = asyncio.Semaphore(2)

    async def decode(data: bytes) -> None:
        async with free:
            began = time.monotonic()
            try:
                await decoder.decode(data, TRANSFORM, preview_px=32)
                outcome = "read"
            except Problem as problem:
                assert problem.status in (415, 422), problem
                assert "\n" not in problem.detail
                outcome = str(problem.status)
                if "crashed" in problem.detail or "takes more than" in problem.detail:
                    outcome = problem.detail
            outcomes[outcome] += 1
            outcomes["over 5 s"] += time.monotonic() - began > 5

    await asyncio.gather(*map(decode, files))
    if sys.platform == "linux":
        memory = max(resident_mb(pid) for pid in decoder.process_ids)
        print(dict(outcomes), f"memory of a process: {memory:.0f} MB")
        assert memory < 1000
    return outcomes


@pytest.fixture
def decoder() -> Iterator[ImageDecoder]:
    decoder = ImageDecoder(max_pixels=10_000_000, time_limit_s=TIME_LIMIT_S)
    yield decoder
    decoder.close()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "count", [25, pytest.param(1300, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_mutated_images_are_read_or_refused(count: int, form: str, decoder: ImageDecoder) -> None:
    generator = random.Random(form)
    file = io.BytesIO()
    tiny.photo(1)[0].save(file, format=form)
    files = [mutations.damage_bytes(file.getvalue(), generator) for _ in range(count)]
    outcomes = asyncio.run(outcomes_of(decoder, files))
    assert outcomes["read"] + outcomes["415"] + outcomes["422"] == count, outcomes
    assert outcomes["415"] + outcomes["422"] > 0


def test_images_that_once_crashed_pillow_are_read_or_refused(decoder: ImageDecoder) -> None:
    """Those that Pillow keeps in Tests/images of its repository: see docs/reliability.md."""
    folder = os.environ.get("PILLOW_IMAGES")
    if not folder:
        pytest.skip("needs PILLOW_IMAGES, the folder Tests/images of a checkout of Pillow")
    files = [path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()]
    assert len(files) > 100
    outcomes = asyncio.run(outcomes_of(decoder, files))
    assert outcomes["read"] + outcomes["415"] + outcomes["422"] == len(files), outcomes
    assert outcomes["read"] > 100
