from __future__ import annotations

import io
import itertools
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captioner.visualization.files import claim_name, png, word_names


def test_a_png_reads_back_as_the_same_pixels():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8))
    with Image.open(io.BytesIO(png(image))) as back:
        assert back.format == "PNG"
        assert back.tobytes() == image.tobytes()


@pytest.mark.parametrize(
    "photos",
    [
        ["/p/a.jpg", "/p/a.png", "/p/a.jpg.png"],
        ["/p/a.JPG", "/p/A.jpg", "/p/a.png"],
        ["/x/y/a.jpg", "/x-y/a.jpg", "/y/a.jpg", "/x/z/y/a.jpg"],
    ],
)
def test_names_are_distinct_on_every_file_system_in_any_order_and_stay(photos):
    for order in itertools.permutations(photos):
        owners = {}
        names = [claim_name(owners, path, Path(path).stem) for path in order]
        assert names[0] == Path(order[0]).stem
        assert len({name.casefold() for name in names}) == len(photos)
        assert not any("/" in name for name in names)
        assert [claim_name(owners, path, Path(path).stem) for path in order] == names


def test_words_become_file_names_that_every_system_takes():
    names = word_names("photo.jpg", ["a", "l'été", "../..", "", "<unk>", "x" * 99, "A\x00/b"])
    assert names == [
        "photo.jpg.01-a.png",
        "photo.jpg.02-l-été.png",
        "photo.jpg.03-word.png",
        "photo.jpg.04-word.png",
        "photo.jpg.05-unk.png",
        f"photo.jpg.06-{'x' * 32}.png",
        "photo.jpg.07-A-b.png",
    ]
