"""The pictures behind `Caption`: save, show, figure, and those of notebooks."""

from __future__ import annotations

import html
import io
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from captioner.errors import CaptionerError
from captioner.visualization import attention_sheet, caption_from_arrays


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


def test_the_raw_maps_hold_all_of_a_caption_and_older_files_can_be_read(caption, tmp_path):
    text = caption.text.replace(" ", "\N{NO-BREAK SPACE}")  # as other tokenizers join words
    whole = replace(caption, text=text, confidence=0.4, confidence_threshold=0.5)
    whole.save(tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as file:
        arrays = dict(file)
    again = caption_from_arrays(arrays)
    assert again.to_dict(maps=True) == whole.to_dict(maps=True)
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


def test_captions_import_no_drawing_until_they_are_drawn():
    program = (
        "import sys, captioner.types;"
        "assert not {'matplotlib', 'captioner.visualization'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
