"""The sheet with a row a model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from captioner.errors import ImageError
from captioner.types import Geometry
from captioner.visualization import colour_scale, comparison_sheet
from captioner.visualization.overlay import colour_table

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


def test_all_rows_share_the_scale_of_the_sharpest(photo, make_caption) -> None:
    sharp = make_caption(photo.size, WORDS, maps=one_hot(3, 31))
    flat = make_caption(photo.size, WORDS, maps=np.full((3, 63), 1 / 63))
    both = np.asarray(comparison_sheet(photo, [("sharp", sharp), ("flat", flat)], opacity=1.0))
    alone = np.asarray(comparison_sheet(photo, [("flat", flat)], opacity=1.0))
    lowest = colour_table("cividis")[round(255 / colour_scale(sharp))]
    low_alone = colour_table("cividis")[round(255 / colour_scale(flat))]
    assert (abs(both.astype(int) - lowest.astype(int)).max(-1) <= 2).sum() > 3 * 200 * 100
    assert (abs(alone.astype(int) - low_alone.astype(int)).max(-1) <= 2).sum() > 3 * 200 * 100
    assert abs(lowest.astype(int) - low_alone.astype(int)).max() > 20


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


def test_the_cells_of_sampled_paths_are_dotted_and_joined(make_caption) -> None:
    photo = Image.new("RGB", (900, 700))
    caption = make_caption(photo.size, WORDS, maps=np.full((3, 63), 1 / 63))
    # Cell 0 is the corner at the top, 62 the opposite one.
    walked = replace(caption, paths=np.array([[0, 62, 0]] * 4))
    from captioner.visualization.overlay import mark_looks

    def marked(word: int) -> np.ndarray:
        picture = photo.copy()
        mark_looks(picture, walked, word)
        return np.asarray(picture)[..., 0] > 200

    first, second = marked(0), marked(1)
    assert first[50, 50]
    assert not first[650, 850]
    assert second[650, 850]
    assert second[350, 450], "a line leads from one corner to the other"
    assert not first[350, 450]
    geometry = replace(Geometry(900, 700, 0, 0, 900, 700), flipped=True)
    picture = photo.copy()
    mark_looks(picture, replace(walked, geometry=geometry), 0)
    assert np.asarray(picture)[50, 850, 0] > 200, "a mirrored photo mirrors the cells"


def test_several_heads_have_a_cell_each(make_caption) -> None:
    photo = Image.new("RGB", (900, 700))
    caption = make_caption(photo.size, WORDS, maps=np.full((3, 63), 1 / 63))
    from captioner.visualization.overlay import mark_looks

    picture = photo.copy()
    mark_looks(picture, replace(caption, cells=np.array([[0, 62]] * 3)), 0)
    bright = np.asarray(picture)[..., 0] > 200
    assert bright[:100, :100].any()
    assert bright[600:, 800:].any()
    assert not bright[200:500, 200:700].any()
