"""Mutated images through the service's decoder: each is read or refused, and nothing crashes or hangs."""

from __future__ import annotations

import asyncio
import io
import random
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import tiny

from captioner.data.transforms import ImageTransform
from captioner.serving.pool import ImageDecoder
from captioner.serving.problems import Problem

FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "AVIF")
TIME_LIMIT_S = 10.0  # as in the server
TRANSFORM = ImageTransform(height_px=64, width_px=96)


def mutated(data: bytes, generator: random.Random) -> bytes:
    """The file with one kind of damage: bytes, numbers, missing, repeated or exchanged parts."""
    changed = bytearray(data)
    here = generator.randrange(len(changed))
    kind = generator.randrange(6)
    if kind == 0:
        for _ in range(generator.choice((1, 2, 8, 64))):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
    elif kind == 1:  # headers are where sizes and counts are
        number = generator.choice((0, 1, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF))
        place = generator.randrange(min(64, len(changed)))
        order = generator.choice(("big", "little"))
        changed[place : place + 4] = number.to_bytes(4, order)
    elif kind == 2:
        del changed[here:]
    elif kind == 3:
        del changed[here : here + generator.randrange(1, 64)]
    elif kind == 4:
        changed[here:here] = changed[: generator.randrange(1, 256)] * generator.choice((1, 8))
    else:
        there = generator.randrange(len(changed))
        changed[here : here + 32], changed[there : there + 32] = (
            changed[there : there + 32],
            changed[here : here + 32],
        )
    return bytes(changed)


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


@pytest.mark.parametrize(
    "count", [25, pytest.param(1300, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_mutated_images_are_read_or_refused(count: int) -> None:
    generator = random.Random(1)
    outcomes: Counter[str] = Counter()
    decoder = ImageDecoder(max_pixels=10_000_000, time_limit_s=TIME_LIMIT_S)

    async def decode(data: bytes, free: asyncio.Semaphore) -> None:
        async with free:
            began = time.monotonic()
            try:
                await decoder.decode(data, TRANSFORM, preview_px=32)
                outcome = "read"
            except Problem as problem:
                assert problem.status in (415, 422), problem
                outcome = "crashed" if "crashed" in problem.detail else str(problem.status)
                if "takes more than" in problem.detail:
                    outcome = "too slow"
            outcomes[outcome] += 1
            outcomes["over 5 s"] += time.monotonic() - began > 5

    async def run() -> None:
        free = asyncio.Semaphore(2)
        for form in FORMATS:
            file = io.BytesIO()
            tiny.photo(1)[0].save(file, format=form)
            files = [mutated(file.getvalue(), generator) for _ in range(count)]
            await asyncio.gather(*(decode(data, free) for data in files))

    try:
        asyncio.run(run())
        if sys.platform == "linux":
            memory = [resident_mb(pid) for pid in decoder.pool.process_ids]
            assert max(memory) < 1000
            outcomes["MB at most"] = round(max(memory))
    finally:
        decoder.close()
    print(dict(outcomes))
    assert outcomes["read"] + outcomes["415"] + outcomes["422"] == count * len(FORMATS), outcomes
    assert min(outcomes["read"], outcomes["422"]) > 0
