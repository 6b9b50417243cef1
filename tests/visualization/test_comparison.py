"""The sheet with a row a model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from captioner.errors import ImageError
from captioner.types import Geometry
from captioner.visualization import OverlayStyle, comparison_sheet
from captioner.visualization.overlay import mark_cells
from captioner.visualization.style import colour_table

WORDS = "a dog runs".split()


@pytest.fixture
def photo() -> Image.Image:
    return Image.new("RGB", (300, 200), (120, 120, 120))


def one_hot(words: int, cell: int, cells: int = 63) -> np.ndarray:
    maps = np.zeros((words, cells))
    maps[:, cell] = 1
    return maps


def test_each_model_has_a_row_and_rows_do_not_touch(photo, make_caption) -> None:
    one = comparison_sheet(photo, [("soft", make_caption(photo.size, WORDS))])
    two = comparison_sheet(
        photo,
        [("soft", make_caption(photo.size, WORDS)), ("hard", make_caption(photo.size, WORDS))],
    )
    assert two.width == one.width
    assert two.height > 1.4 * one.height
    # Under the first row's labels there is a white line over the whole width.
    lines = (np.asarray(two) == 255).all((1, 2))
    assert np.count_nonzero(np.diff(lines.astype(int)) == 1) >= 4


def test_a_sharp_model_does_not_change_the_tint_of_a_flat_one(photo, make_caption) -> None:
    sharp = make_caption(photo.size, WORDS, maps=one_hot(3, 31))
    flat = make_caption(photo.size, WORDS, maps=np.full((3, 63), 1 / 63))
    style = OverlayStyle("colour", opacity=1.0)
    uniform = colour_table("viridis")[51].astype(int)  # a fifth of the way up
    for captions in ([("flat", flat)], [("sharp", sharp), ("flat", flat)]):
        sheet = np.asarray(comparison_sheet(photo, captions, style)).astype(int)
        assert (abs(sheet - uniform).max(-1) <= 1).sum() > 3 * 200 * 100
    only_sharp = np.asarray(comparison_sheet(photo, [("sharp", sharp)], style)).astype(int)
    assert (abs(only_sharp - uniform).max(-1) <= 1).sum() < 200 * 100


def test_a_caption_that_is_too_long_goes_on_in_a_second_line(photo, make_caption) -> None:
    short = comparison_sheet(photo, [("a", make_caption(photo.size, ["word"] * 14))])
    long = comparison_sheet(photo, [("a", make_caption(photo.size, ["word"] * 15))])
    assert long.width == short.width
    assert long.height > short.height + 150


@pytest.mark.parametrize("words", [[], ["one"], ["incomprehensibilities"] * 25])
@pytest.mark.parametrize("size", [(1000, 20), (20, 1000), (1, 1), (4000, 3000)])
def test_any_photo_and_any_caption_can_be_drawn(size, words, make_caption) -> None:
    photo = Image.new("RGB", size)
    caption = make_caption(size, words, hard=True)
    sheet = comparison_sheet(photo, [("x" * 500, caption), ("y", caption)])
    assert sheet.width <= 14 * 420 + 200
    assert sheet.height > 100


def test_a_photo_of_another_size_is_refused(photo, make_caption) -> None:
    with pytest.raises(ImageError, match="belongs to a photo"):
        comparison_sheet(photo, [("a", make_caption((200, 300), WORDS))])
    with pytest.raises(ValueError, match="nothing to compare"):
        comparison_sheet(photo, [])


def marked(caption, word: int) -> np.ndarray:
    picture = Image.new("RGB", (900, 700))
    mark_cells(picture, caption, word)
    return np.asarray(picture)[..., 0] > 200


def test_a_sampled_path_is_a_line_from_a_ring_to_a_dot(make_caption) -> None:
    caption = make_caption((900, 700), WORDS, maps=np.full((3, 63), 1 / 63))
    # Cell 0 is the corner at the top, 62 the opposite one.
    path = replace(caption, paths=np.array([[0, 62, 0]] * 4))
    first, second = marked(path, 0), marked(path, 1)
    assert first[50, 50]
    assert not first[650, 850]
    assert not first[350, 450]
    assert second[650, 850], "a dot where the path is now"
    assert second[350, 450], "a line leads from one corner to the other"
    assert second[50, 50 - 15], "a ring where it was before"
    assert not second[650, 850 - 15], "which the end does not have"
    geometry = replace(Geometry(900, 700, 0, 0, 900, 700), flipped=True)
    mirrored = marked(replace(path, geometry=geometry), 0)
    assert mirrored[50, 850], "a mirrored photo mirrors the cells"


def test_only_the_most_frequent_steps_are_drawn_and_thicker_the_more_frequent(
    make_caption,
) -> None:
    caption = make_caption((900, 700), ["a", "dog"], maps=np.full((2, 63), 1 / 63))
    paths = [[0, 8]] * 8 + [[27, 35]] * 2 + [[54, 62]] * 4 + [[18, 26]] * 3 + [[9, 10]]
    drawn = marked(replace(caption, paths=np.array(paths)), 1)
    rows = [drawn[100 * row + 30 : 100 * row + 70, 450].sum() for row in range(7)]
    assert rows[0] > rows[6] > rows[2] >= rows[3] > 0
    assert not drawn[150, 100:200].any(), "the least frequent step"
    # Every dot is at the end of a line: cells 8, 35, 62 and 26.
    dots = [bool(drawn[100 * (c // 9) + 50, 100 * (c % 9) + 50]) for c in range(63)]
    assert [cell for cell in range(63) if cell % 9 == 8 and dots[cell]] == [8, 26, 35, 62]


def test_several_heads_have_a_cell_each(make_caption) -> None:
    photo = Image.new("RGB", (900, 700))
    caption = make_caption(photo.size, WORDS, maps=np.full((3, 63), 1 / 63))
    picture = photo.copy()
    mark_cells(picture, replace(caption, cells=np.array([[0, 62]] * 3)), 0)
    bright = np.asarray(picture)[..., 0] > 200
    assert bright[:100, :100].any()
    assert bright[600:, 800:].any()
    assert not bright[200:500, 200:700].any()
