"""Mutated image files: each is read or refused in one sentence; a crash would end the tests."""

from __future__ import annotations

import io
import random
import time

import pytest
import tiny

from captioner.data.transforms import IMAGE_FORMATS, open_image
from captioner.errors import ImageError


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
    file = io.BytesIO()
    tiny.photo(1)[0].save(file, format=form)
    refused = 0
    for _ in range(count):
        data = damaged(file.getvalue(), generator)
        began = time.process_time()
        try:
            assert open_image(data, max_pixels=10_000_000).mode == "RGB"
        except ImageError as error:
            assert "\n" not in str(error)
            refused += 1
        assert time.process_time() - began < 10
    assert refused > 0
