"""Mutated image files: each is read or refused in one sentence; a crash would end the tests."""

from __future__ import annotations

import io
import random
import time

import mutations
import pytest
import tiny

from captioner.data.transforms import IMAGE_FORMATS, open_image
from captioner.errors import ImageError


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
        data = mutations.damage_bytes(file.getvalue(), generator)
        began = time.process_time()
        try:
            assert open_image(data, max_pixels=10_000_000).mode == "RGB"
        except ImageError as error:
            assert "\n" not in str(error)
            refused += 1
        assert time.process_time() - began < 10
    assert refused > 0
