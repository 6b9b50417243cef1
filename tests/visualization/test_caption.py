"""Captions as plain values and arrays, and their pictures: save, figure, those of notebooks."""

from __future__ import annotations

import html
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from captioner.errors import CaptionerError
from captioner.types import Geometry
from captioner.visualization import Caption, attention_sheet, caption_from_arrays


@pytest.fixture
def caption(make_caption):
    image = Image.new("RGB", (90, 70), "green")
    return replace(make_caption((90, 70), ["two", "dogs"]), image=image)


def test_the_suffix_decides_the_format(caption, tmp_path):
    starts = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml", "gif": b"GIF8", "html": b"<!DOC"}
    for kind, start in starts.items():
        caption.save(tmp_path / f"x.{kind}")
        assert (tmp_path / f"x.{kind}").read_bytes().startswith(start), kind
    with Image.open(tmp_path / "x.png") as sheet:
        assert sheet.tobytes() == attention_sheet(caption.image, caption).tobytes()
    caption.save(str(tmp_path / "X.PNG"), "mask")
    assert (tmp_path / "X.PNG").read_bytes() != (tmp_path / "x.png").read_bytes()
    caption.save(tmp_path / "x.npz")
    with pytest.raises(CaptionerError, match="fog is not"):
        caption.save(tmp_path / "y.png", style="fog")
    with pytest.raises(CaptionerError, match=r"x\.jpg: .*\.png, \.pdf"):
        caption.save(tmp_path / "x.jpg")
    with pytest.raises(CaptionerError, match="cannot be saved"):
        caption.picture_bytes("bmp")


def test_the_raw_maps_hold_all_of_a_caption_and_older_files_can_be_read(caption, tmp_path):
    text = caption.text.replace(" ", "\N{NO-BREAK SPACE}")  # as other tokenizers join words
    whole = replace(caption, text=text, confidence=0.4, confidence_threshold=0.5)
    whole.save(tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as file:
        arrays = dict(file)
    assert caption_from_arrays(arrays).to_dict(maps=True) == whole.to_dict(maps=True)
    for name in ("text", "confidence", "confidence_threshold"):
        del arrays[name]
    assert caption_from_arrays(arrays).to_dict(maps=True) == caption.to_dict(maps=True)


def test_the_image_may_be_a_file_or_its_bytes(caption, tmp_path):
    file = tmp_path / "photo.png"
    caption.image.save(file)
    expected = caption._repr_png_()
    for source in (file, str(file), file.read_bytes()):
        assert replace(caption, image=source)._repr_png_() == expected


def test_without_an_image_there_is_nothing_to_draw_on(caption, tmp_path):
    bare = replace(caption, image=None)
    assert bare._repr_png_() is None
    assert bare._repr_html_() is None
    with pytest.raises(CaptionerError, match="image"):
        bare.save(tmp_path / "x.png")
    bare.save(tmp_path / "x.npz")


def test_notebooks_get_a_page_in_a_frame_and_a_picture(caption):
    text = caption._repr_html_()
    page = html.unescape(text.split('srcdoc="')[1].split('" title=')[0])
    assert page.startswith("<!DOCTYPE html>")
    assert "two dogs" in page
    assert 'sandbox="allow-scripts"' in text
    with Image.open(io.BytesIO(caption._repr_png_())) as sheet:
        assert sheet.size == attention_sheet(caption.image, caption).size


def plain_caption(count: int = 2, **changed: object) -> Caption:
    fields = {
        "words": ["a", "dog", "runs"][:count],
        "maps": np.full((count, 2, 3), 1 / 6, np.float32),
        "beta": np.ones(count, np.float32),
        "log_probs": np.zeros(count, np.float32),
        "geometry": Geometry(6, 4, 0, 0, 6, 4),
    }
    return Caption(**{**fields, **changed})


def test_a_caption_s_text_is_its_words_unless_it_is_given() -> None:
    assert plain_caption().text == "a dog"
    assert plain_caption(text="A dog.").text == "A dog."


def test_a_head_has_its_own_paths_and_another_layer_than_the_last_has_none() -> None:
    paths = np.array([[sample, head] for sample in range(4) for head in range(3)])
    several = plain_caption(heads=np.full((2, 2, 3, 2, 3), 1 / 6, np.float32), paths=paths)
    assert several.of_head(head=2).paths.tolist() == [[sample, 1] for sample in range(4)]
    assert several.of_head(2, 3).paths.tolist() == [[sample, 2] for sample in range(4)]
    assert several.of_head().paths is paths
    assert several.of_head(1).paths is None
    assert several.of_head(1, 2).paths is None


def test_a_caption_as_plain_values_goes_through_json_and_back() -> None:
    maps = np.arange(2 * 2 * 3, dtype=np.float32).reshape(2, 2, 3) / 66
    caption = Caption(
        words=["two", "dogs"],
        maps=maps,
        beta=np.array([0.25, 1 / 3], np.float32),
        log_probs=np.array([-0.5, -2.0], np.float32),
        geometry=Geometry(30, 20, 0, 0, 30, 20),
        end_log_prob=-0.125,
        cells=np.array([5, 0]),
    )
    plain = caption.to_dict()
    assert (
        json.loads(json.dumps(plain))
        == plain
        == {
            "caption": "two dogs",
            "words": ["two", "dogs"],
            "log_probs": [-0.5, -2.0],
            "end_log_prob": -0.125,
            "beta": [0.25, 0.333333],
            "cells": [5, 0],
            "confidence": None,
        }
    )
    whole = json.loads(json.dumps(caption.to_dict(maps=True)))
    np.testing.assert_allclose(whole["maps"], maps, atol=5e-7)
    assert Geometry(**whole["geometry"]) == caption.geometry
    assert "heads" not in whole
