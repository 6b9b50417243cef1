from __future__ import annotations

import doctest
import importlib
import io
import itertools
import pkgutil

import numpy as np
import pytest
from PIL import Image

import captioner.visualization
from captioner.visualization.files import output_names, png, word_names


def test_a_png_reads_back_as_the_same_pixels():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8))
    with Image.open(io.BytesIO(png(image))) as back:
        assert back.format == "PNG"
        assert back.tobytes() == image.tobytes()


def test_photos_that_differ_in_suffix_folder_or_case_do_not_share_a_name():
    assert output_names(["in/dog.jpg"]) == ["dog"]
    assert output_names(["in/a.jpg", "in/a.png", "in/b.png"]) == ["a.jpg", "a.png", "b"]
    assert output_names(["x/a.jpg", "y/a.jpg"]) == ["x-a.jpg", "y-a.jpg"]
    assert output_names(["a.JPG", "A.jpg"]) == output_names(["a.JPG", "A.jpg"])
    assert output_names(["a.jpg", "./a.jpg", "b/../a.jpg"]) == ["a", "a", "a"]
    assert output_names([]) == []


@pytest.mark.parametrize(
    "photos",
    [
        ["/p/a.jpg", "/p/a.png", "/p/a.jpg.png"],
        ["/p/a.JPG", "/p/A.jpg", "/p/a.png"],
        ["/x/y/a.jpg", "/x-y/a.jpg", "/y/a.jpg", "/a.jpg"],
    ],
)
def test_names_are_distinct_on_every_file_system_and_in_any_order(photos):
    names = dict(zip(photos, output_names(photos), strict=True))
    assert len({name.casefold() for name in names.values()}) == len(photos)
    assert not any("/" in name or name.startswith("-") for name in names.values())
    for order in itertools.permutations(photos):
        assert dict(zip(order, output_names(order), strict=True)) == names


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


def test_the_examples_in_the_documentation_are_true():
    tried = 0
    for module in pkgutil.iter_modules(
        captioner.visualization.__path__, "captioner.visualization."
    ):
        results = doctest.testmod(importlib.import_module(module.name))
        assert results.failed == 0
        tried += results.attempted
    assert tried >= 3
