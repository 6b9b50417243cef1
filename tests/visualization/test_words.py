from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageColor

from captioner.errors import ImageError
from captioner.visualization.animation import caption_frames
from captioner.visualization.overlay import word_overlay
from captioner.visualization.style import OverlayStyle
from captioner.visualization.typography import WARNING
from captioner.visualization.words import word_images

WORDS = "a brown dog".split()


def noise(width, height):
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("smooth", [True, False])
def test_each_picture_is_the_overlay_on_the_photo_at_its_own_size_above_a_strip(
    make_caption, smooth, hard
):
    photo = noise(400, 330)
    caption = make_caption((400, 330), WORDS, hard=hard)
    pictures = list(word_images(photo, caption, OverlayStyle(smooth=smooth)))
    assert len(pictures) == len(WORDS)
    assert len({picture.size for picture in pictures}) == 1
    for index, picture in enumerate(pictures):
        expected = word_overlay(photo, caption, index, OverlayStyle(smooth=smooth))
        assert picture.crop((0, 0, 400, 330)).tobytes() == expected.tobytes()
        strip = np.asarray(picture.crop((0, 330, *picture.size)))
        assert 60 < len(strip) < 200
        assert (strip == 255).all(axis=2).mean() > 0.5
    first, second = (np.asarray(picture.crop((0, 330, *picture.size))) for picture in pictures[:2])
    assert (first != second).any()


@pytest.mark.parametrize(
    ("photo_size", "picture_size"),
    [
        ((640, 480), (640, 480)),
        ((4000, 3000), (2048, 1536)),
        ((3000, 4000), (1536, 2048)),
        ((8000, 800), (2048, 205)),
        ((200, 100), (320, 160)),
        ((1, 1), (320, 320)),
        ((64, 640), (64, 640)),
    ],
)
def test_the_photo_keeps_its_shape_and_its_size_within_limits(
    make_caption, photo_size, picture_size
):
    photo = Image.new("RGB", photo_size, "white")
    caption = make_caption(photo_size, ["antidisestablishmentarianism" * 3], maps=[np.eye(9)[:7]])
    (picture,) = word_images(photo, caption)
    pixels = np.asarray(picture)
    painted = pixels[: picture_size[1]] < 255
    rows, columns = (
        np.flatnonzero(painted.any(axis=(1, 2))),
        np.flatnonzero(painted.any(axis=(0, 2))),
    )
    assert (len(columns), len(rows)) == picture_size
    assert columns[-1] - columns[0] + 1 == len(columns)
    assert picture.width == max(320, picture_size[0])
    strip = pixels[picture_size[1] :]
    assert (strip < 255).any()
    assert strip[-4:].min() == 255  # nothing is cut off
    assert strip[:, :4].min() == 255
    assert strip[:, -4:].min() == 255


@pytest.mark.parametrize(
    ("photo_size", "shown_size"),
    [((80, 160), (160, 320)), ((160, 80), (320, 160)), ((300, 500), (300, 500))],
)
def test_the_first_frame_of_a_gif_shows_the_whole_photo_as_large_as_the_words_do(
    make_caption, photo_size, shown_size
):
    photo = Image.new("RGB", photo_size, "red")
    still, *_ = caption_frames(photo, make_caption(photo_size, WORDS), OverlayStyle())
    red = (np.asarray(still) == (255, 0, 0)).all(axis=2)
    width, height = shown_size
    # All but the hairline along its border.
    assert (red.any(axis=0).sum(), red.any(axis=1).sum()) == (width - 2, height - 2)


def test_a_gif_has_the_note_of_an_unsure_caption_in_every_frame(make_caption):
    photo, sure = Image.new("RGB", (400, 300)), make_caption((400, 300), WORDS)
    unsure = replace(sure, confidence=0.29, confidence_threshold=0.4)
    frames, plain = (list(caption_frames(photo, each, OverlayStyle())) for each in (unsure, sure))
    for frame, without in zip(frames, plain, strict=True):
        added = frame.height - without.height
        assert added > 0
        above = np.asarray(frame)[: 2 * added]
        assert (above == ImageColor.getrgb(WARNING)).all(axis=2).any()


def test_the_longest_side_can_be_set(make_caption):
    photo = Image.new("RGB", (640, 480))
    for limit, expected in ((500, 500), (100, 320), (10_000, 640)):
        picture = next(word_images(photo, make_caption((640, 480), WORDS), max_side_px=limit))
        assert picture.width == expected


def test_pictures_are_made_one_at_a_time_and_the_photo_is_not_changed(make_caption):
    photo = noise(60, 50)
    before = photo.tobytes()
    caption = make_caption((60, 50), WORDS * 1000)
    assert len(list(itertools.islice(word_images(photo, caption), 2))) == 2
    assert photo.tobytes() == before


def test_a_caption_without_words_has_no_pictures(make_caption):
    assert list(word_images(noise(60, 50), make_caption((60, 50), []))) == []


def test_a_photo_of_another_size_is_refused(make_caption):
    with pytest.raises(ImageError, match="upright"):
        next(word_images(noise(50, 60), make_caption((60, 50), WORDS)))
