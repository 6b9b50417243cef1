"""Pictures of single words, and animations of a caption."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageColor

from captioner.visualization import caption_gif
from captioner.visualization.overlay import word_overlay
from captioner.visualization.sheet import caption_frames, word_images
from captioner.visualization.style import Layers, OverlayStyle
from captioner.visualization.typography import WARNING

WORDS = "a brown dog".split()


def noise(width, height):
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("hard", [True, False])
def test_each_picture_is_the_overlay_at_the_photos_size_above_a_strip(make_caption, hard):
    photo = noise(400, 330)
    caption = make_caption((400, 330), WORDS, hard=hard)
    pictures = list(word_images(photo, caption))
    assert len(pictures) == len(WORDS)
    assert len({picture.size for picture in pictures}) == 1
    for index, picture in enumerate(pictures):
        expected = word_overlay(Layers(photo, OverlayStyle()), caption, index)
        assert picture.crop((0, 0, 400, 330)).tobytes() == expected.tobytes()
        strip = np.asarray(picture.crop((0, 330, *picture.size)))
        assert (strip == 255).all(axis=2).mean() > 0.5
    first, second = (np.asarray(picture.crop((0, 330, *picture.size))) for picture in pictures[:2])
    assert (first != second).any()


@pytest.mark.parametrize(
    ("photo_size", "picture_size"),
    [
        ((640, 480), (640, 480)),
        ((4000, 3000), (2048, 1536)),
        ((8000, 800), (2048, 205)),
        ((1, 1), (320, 320)),
        ((64, 640), (64, 640)),
    ],
)
def test_a_picture_keeps_the_photos_shape_and_cuts_nothing_off(
    make_caption, photo_size, picture_size
):
    photo = Image.new("RGB", photo_size, "white")
    caption = make_caption(photo_size, ["antidisestablishmentarianism" * 3], maps=[np.eye(9)[:7]])
    (picture,) = word_images(photo, caption, OverlayStyle("mask", opacity=0.9))
    pixels = np.asarray(picture)
    painted = pixels[: picture_size[1]] < 255
    rows, columns = painted.any(axis=(1, 2)).sum(), painted.any(axis=(0, 2)).sum()
    assert (columns, rows) == picture_size
    assert picture.width == max(320, picture_size[0])
    strip = pixels[picture_size[1] :]
    assert (strip < 255).any()
    for edge in (strip[-4:], strip[:, :4], strip[:, -4:]):
        assert edge.min() == 255


def test_the_first_frame_of_a_gif_is_the_photo_as_large_as_in_the_others(make_caption):
    photo = Image.new("RGB", (80, 160), "red")
    still, *_ = caption_frames(photo, make_caption(photo.size, WORDS), OverlayStyle())
    red = (np.asarray(still) == (255, 0, 0)).all(axis=2)
    # All but the hairline along its border.
    assert (red.any(axis=0).sum(), red.any(axis=1).sum()) == (158, 318)


def test_every_frame_of_a_gif_shows_the_confidence_as_a_warning_where_it_is_low(make_caption):
    photo, plain = Image.new("RGB", (400, 300)), make_caption((400, 300), WORDS)
    heights = []
    for confidence, warned in ((None, False), (0.29, True), (0.7, False)):
        caption = replace(plain, confidence=confidence, confidence_threshold=0.4)
        frames = caption_frames(photo, caption, None)
        heights.append(frames[0].height)
        for frame in frames:
            above = np.asarray(frame)[:80]
            assert (above == ImageColor.getrgb(WARNING)).all(axis=2).any() == warned
    assert heights[0] < heights[1] == heights[2]


def test_a_gif_of_a_photo_with_detail_is_below_a_megabyte(make_caption):
    rng = np.random.default_rng(5)
    y, x = np.mgrid[:640, :480]
    planes = [128 + 100 * np.sin(x / 61 + 2), 128 + 100 * np.cos(y / 47), (x + y) / 5]
    pixels = np.stack(planes, axis=-1) + rng.normal(0, 6, (640, 480, 3))
    photo = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    content = caption_gif(photo, make_caption(photo.size, WORDS * 4))
    assert len(content) < 1_000_000
    with Image.open(io.BytesIO(content)) as animation:
        assert animation.n_frames == 13
