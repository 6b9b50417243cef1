from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import tiny
from photos import noise
from PIL import Image, ImageColor, ImageDraw

from captioner.data.augmentation import Augmentation
from captioner.data.images import open_image
from captioner.data.transforms import ImageTransform
from captioner.errors import ImageError
from captioner.types import Geometry
from captioner.visualization.overlay import (
    attention_heat,
    draw_marks,
    paint,
    peaks,
    resize_captioned,
)
from captioner.visualization.style import (
    COLOUR_MAPS,
    LINE_COLOUR,
    PATH_COLOURS,
    STYLES,
    Layers,
    OverlayStyle,
    colour_table,
)

WHOLE = Geometry(300, 200, 0, 0, 300, 200)
LETTERBOX = Geometry(300, 200, 0, -50, 300, 300)
CROP = Geometry(300, 200, 60, 20, 150, 120)
MIRRORED = Geometry(300, 200, 10, -30, 250, 240, flipped=True)


def centre_of(heat):
    """Centre of mass (x, y) in pixels, where the centre of the first pixel is 0.5."""
    heat = np.asarray(heat, dtype=np.float64)
    y, x = np.mgrid[: heat.shape[0], : heat.shape[1]] + 0.5
    return (heat * x).sum() / heat.sum(), (heat * y).sum() / heat.sum()


def photo_with_spot(width, height, x, y):
    """A black photo with a white disc, two fifths of its shorter side wide, around (x, y)."""
    radius = min(width, height) / 5
    rows, columns = np.mgrid[:height, :width] + 0.5
    spot = (columns - x) ** 2 + (rows - y) ** 2 < radius**2
    return Image.fromarray((spot * 255).astype(np.uint8)).convert("RGB")


@pytest.mark.parametrize(
    ("kind", "grid", "resize", "flipped", "cropped"),
    [
        ("landscape", (7, 9), "letterbox", True, True),
        ("portrait", (14, 14), "squash", True, False),
        ("exif", (7, 9), "squash", False, True),
    ],
)
@pytest.mark.parametrize("smooth", [True, False])
def test_heat_lies_on_the_pixels_that_the_network_read(
    kind, grid, resize, flipped, cropped, smooth
):
    # The spot's cell is found in the network's own input, so nothing here trusts the geometry.
    if kind == "landscape":
        photo = photo_with_spot(640, 400, 420, 170)
    elif kind == "portrait":
        photo = photo_with_spot(360, 600, 140, 350)
    else:
        exif = Image.Exif()
        exif[0x0112] = 6  # stored on its side: turn clockwise by a quarter to see it upright
        stored = photo_with_spot(640, 400, 420, 170)
        photo = open_image(tiny.encoded(stored, "JPEG", quality=95, exif=exif))
        assert photo.size == (400, 640)
    spot = centre_of(np.asarray(photo.convert("L")) > 127)
    transform = ImageTransform(
        height_px=14 * 18,
        width_px=14 * 18,
        resize=resize,
        augmentation=Augmentation(flip=float(flipped), min_area=0.7 if cropped else 1.0),
    )
    pixels, geometry = transform(photo, np.random.default_rng(3))
    assert geometry.flipped == flipped
    rows, columns = grid
    seen = pixels[0].numpy().reshape(rows, 252 // rows, columns, 252 // columns)
    hot = seen.clip(0).mean(axis=(1, 3))  # letterbox padding is 0, black is below
    x, y = centre_of(attention_heat(hot / hot.sum(), geometry, photo.size, smooth=smooth))
    assert abs(x - spot[0]) < 0.15 * geometry.width_px / columns  # of a cell
    assert abs(y - spot[1]) < 0.15 * geometry.height_px / rows


@pytest.mark.parametrize("geometry", [WHOLE, LETTERBOX, CROP, MIRRORED])
def test_raw_heat_is_that_of_the_cell_whose_box_holds_the_pixel(geometry):
    cells = np.random.default_rng(0).dirichlet(np.ones(63)).reshape(7, 9)
    heat = attention_heat(cells, geometry, (30, 20), smooth=False)
    expected = np.zeros((20, 30))
    for y in range(20):
        for x in range(30):
            for row in range(7):
                for column in range(9):
                    x0, y0, x1, y1 = geometry.cell_box_px(row, column, 7, 9)
                    if x0 <= (x + 0.5) * 10 < x1 and y0 <= (y + 0.5) * 10 < y1:
                        expected[y, x] = cells[row, column] * 63
    np.testing.assert_allclose(heat, expected, rtol=1e-5)


def test_smooth_heat_keeps_the_cells_values_and_is_a_cubic_between_them():
    cells = np.random.default_rng(1).dirichlet(np.ones(12)).reshape(3, 4)
    step = 41  # odd, so that a pixel lies on every centre
    heat = attention_heat(cells, WHOLE, (4 * step, 3 * step))
    np.testing.assert_allclose(heat[step // 2 :: step, step // 2 :: step], cells * 12, rtol=1e-5)
    # Between two neighbours, by the cubic through four points (mirrored at the border).
    line = np.pad(cells[1] * 12, 2, mode="symmetric")
    for pixel in range(4 * step):
        place = (pixel + 0.5) / step + 1.5  # in `line`
        i, t = int(place), place - int(place)
        a, b, c, d = line[i - 1 : i + 3]
        expected = b + t / 2 * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)))
        assert heat[step + step // 2, pixel] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("grid", [(14, 14), (1, 1), (1, 2), (30, 40)])
@pytest.mark.parametrize("size", [(37, 211), (1, 1)])
def test_uniform_attention_is_one_everywhere(size, grid, smooth):
    uniform = np.full(grid, 1 / (grid[0] * grid[1]))
    for geometry in (WHOLE, LETTERBOX):
        heat = attention_heat(uniform, geometry, size, smooth=smooth)
        np.testing.assert_allclose(heat, 1, rtol=1e-5)


def test_peaks_are_the_highest_cell_and_others_at_least_half_as_high():
    cells = np.full((7, 9), 0.001)
    cells[1, 1], cells[1, 2], cells[5, 7], cells[3, 4] = 0.3, 0.2, 0.16, 0.1
    assert peaks(cells / cells.sum(), 3.0) == [10, 52]  # not its neighbour, nor a third of it
    assert peaks(np.full((7, 9), 1 / 63), 3.0) == []


def position(heat):
    """Where an attention stands on the scale, by a formula of its own: 0.5 to 16, logarithmic."""
    return min(max((math.log2(max(heat, 1e-9)) + 1) / 5, 0), 1)


def some_heat():
    return (2 ** np.random.default_rng(1).uniform(-3, 6, (6, 8))).astype(np.float32)


def marked(caption, index, size=(900, 700)):
    """Where the marks of a word are: an array of colours on black."""
    picture = Image.new("RGB", size)
    draw_marks(ImageDraw.Draw(picture), caption, index, (0, 0, *size))
    return np.asarray(picture)


def overlay(image, heat, style=None):
    return paint(Layers(image, OverlayStyle.of(style)), heat, heat)


@pytest.mark.parametrize("heat", [0.3, 1.0, 3.0, 12.0])
def test_focus_has_the_photos_colours_from_8_times_uniform_and_a_lifted_grey_below(heat):
    photo = noise(8, 6)
    before = photo.tobytes()
    painted = np.asarray(overlay(photo, np.full((6, 8), heat)), dtype=float)  # flat: no lines
    assert photo.tobytes() == before, "the photo was changed"
    grey, pixels = np.asarray(photo.convert("L"), float), np.asarray(photo, float)
    t = min(max((math.log2(heat) + 1) / 4, 0), 1)
    expected = (0.35 * grey + 0.12 * 255)[..., None] * (1 - t) + pixels * t
    np.testing.assert_allclose(painted, expected, atol=2)


@pytest.mark.parametrize("level", [2.0, 4.0, 8.0])
def test_focus_draws_a_line_where_attention_crosses_its_level(level):
    photo = Image.new("RGB", (200, 200), (90, 90, 200))
    across = np.linspace(math.log2(level) - 0.7, math.log2(level) + 0.7, 200)
    heat = np.repeat(2 ** across[None], 200, axis=0).astype(np.float32)
    row = np.asarray(overlay(photo, heat))[100].astype(int)
    amber = np.abs(row - ImageColor.getrgb(LINE_COLOUR)).sum(axis=1) < 250
    places = np.flatnonzero(amber)
    assert places.size, "no line"
    assert abs(places.mean() - 99.5) < 1.5
    assert 1 <= len(places) <= {2.0: 2, 4.0: 3, 8.0: 4}[level]
    bare = np.asarray(overlay(photo, heat, OverlayStyle(threshold=level * 1.01)))[100].astype(int)
    assert not (np.abs(bare - ImageColor.getrgb(LINE_COLOUR)).sum(axis=1) < 250).any()


@pytest.mark.parametrize("name", COLOUR_MAPS)
def test_colour_is_a_mixture_of_the_grey_photo_and_the_colour_of_the_heat(name):
    photo, heat = noise(8, 6), some_heat()
    painted = np.asarray(overlay(photo, heat, OverlayStyle("colour", True, name, 0.7)))
    grey, table = np.asarray(photo.convert("L"), dtype=float), colour_table(name)
    for y in range(6):
        for x in range(8):
            expected = 0.3 * grey[y, x] + 0.7 * table[int(position(heat[y, x]) * 255 + 0.5)]
            np.testing.assert_allclose(painted[y, x], expected, atol=1.6)


def test_light_dims_the_photo_and_lights_it_with_a_warm_white():
    photo, heat = noise(8, 6), some_heat()
    painted = np.asarray(overlay(photo, heat, "light"))
    pixels = np.asarray(photo, dtype=float)
    for y in range(6):
        for x in range(8):
            t = position(heat[y, x])
            rise = min(t / 0.75, 1)
            kept, glow = 3 * rise**2 - 2 * rise**3, 0.7 * min(max((t - 0.35) / 0.6, 0), 1)
            for channel, white in enumerate((1.0, 0.95, 0.82)):
                value = pixels[y, x, channel]
                lit = value * kept * (1 - glow) + 255 * glow * white
                assert painted[y, x, channel] == pytest.approx(0.25 * value + 0.75 * lit, abs=3)


def test_mask_dims_by_the_place_on_the_scale():
    photo, heat = noise(8, 6), some_heat()
    painted = np.asarray(overlay(photo, heat, OverlayStyle("mask", opacity=0.9)), dtype=float)
    kept = 1 - 0.9 * (1 - np.vectorize(position)(heat))
    np.testing.assert_allclose(painted, np.asarray(photo) * kept[..., None], atol=2)


@pytest.mark.parametrize("kind", ["light", "colour", "mask"])
def test_without_opacity_the_photo_is_left_and_below_the_threshold_nothing_is_painted(kind):
    photo, heat = noise(8, 6), some_heat()
    expected = photo.convert("L").convert("RGB") if kind == "colour" else photo
    painted = overlay(photo, heat, OverlayStyle(kind, opacity=0))
    np.testing.assert_array_equal(np.asarray(painted), np.asarray(expected))
    style = OverlayStyle(kind, threshold=3.0)
    painted, nothing = (np.asarray(overlay(photo, h, style)) for h in (heat, np.zeros_like(heat)))
    above = np.asarray(overlay(photo, heat, OverlayStyle(kind)))
    np.testing.assert_array_equal(painted[heat >= 3.1], above[heat >= 3.1])
    np.testing.assert_array_equal(painted[heat < 2.9], nothing[heat < 2.9])


def test_flat_attention_is_one_tint_without_lines():
    photo = Image.new("RGB", (97, 61), (90, 90, 90))
    heat = attention_heat(np.full((14, 14), 1 / 196), Geometry(97, 61, 0, 0, 97, 61), (97, 61))
    for kind in STYLES:
        assert len(overlay(photo, heat, kind).getcolors()) == 1, kind


def test_a_photo_of_any_mode_becomes_rgb_and_one_not_turned_upright_is_refused():
    for mode in ("RGB", "L", "P", "RGBA"):
        photo = noise(40, 20).convert(mode)
        small = resize_captioned(photo, Geometry(40, 20, 0, 0, 40, 20), (13, 7))
        expected = photo.convert("RGB").resize((13, 7), Image.Resampling.LANCZOS)
        assert small.mode == "RGB"
        np.testing.assert_allclose(np.asarray(small, int), np.asarray(expected, int), atol=2)
    with pytest.raises(ImageError, match=r"is 40 x 20 pixels, but .* of 20 x 40"):
        resize_captioned(noise(40, 20), Geometry(20, 40, 0, 0, 20, 40), (10, 20))


@pytest.mark.parametrize("scale", [0.5, 3])
def test_a_sampled_cell_is_outlined_along_its_border(make_caption, scale):
    geometry = Geometry(900, 700, 0, -100, 900, 910, flipped=True)
    maps = np.zeros((1, 7, 9))
    maps[0, 3, 2] = 1
    caption = make_caption((900, 700), ["dog"], maps=maps, geometry=geometry, hard=True)
    white = marked(caption, 0, (round(900 * scale), round(700 * scale))).min(axis=2) == 255
    rows, columns = np.flatnonzero(white.any(axis=1)), np.flatnonzero(white.any(axis=0))
    drawn = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
    box = np.array(geometry.cell_box_px(3, 2, 7, 9)) * scale
    np.testing.assert_allclose(drawn, box, atol=1)
    assert not white[round((box[1] + box[3]) / 2), round((box[0] + box[2]) / 2)]


def test_peaks_have_a_cross_on_the_centre_of_their_cell(make_caption):
    maps = np.full((2, 7, 9), 0.5 / 61)
    maps[0, 3, 2], maps[0, 5, 7] = 0.3, 0.2
    maps[1] = 1 / 63
    geometry = Geometry(900, 700, 0, 0, 900, 700, flipped=True)
    caption = make_caption((900, 700), ["a", "dog"], maps=maps, geometry=geometry)
    assert not marked(caption, 1).any(), "flat attention has no peak"
    white = marked(caption, 0)[..., 0] == 255
    for x, y in ((650, 350), (150, 550)):  # mirrored
        assert white[y, x]
        assert white[y - 40 : y + 41, x - 40 : x + 41].sum() == pytest.approx(500, rel=0.2)
        white[y - 40 : y + 41, x - 40 : x + 41] = False
    assert not white.any()


def test_a_sampled_cell_beyond_the_photo_is_not_drawn(make_caption):
    maps = np.zeros((2, 7, 9))
    maps[0, 0, 4] = maps[1, 3, 4] = 1
    letterbox = Geometry(900, 100, 0, -400, 900, 900)
    caption = make_caption((900, 100), ["a", "dog"], maps=maps, geometry=letterbox, hard=True)
    assert [marked(caption, index, (900, 100)).any() for index in (0, 1)] == [False, True]


def test_a_sampled_path_is_one_line_from_a_ring_to_a_dot(make_caption):
    caption = make_caption((900, 700), ["a", "dog", "runs"], maps=np.full((3, 63), 1 / 63))
    path = replace(caption, paths=np.array([[0, 62, 8]]))  # top left, bottom right, top right
    colour = ImageColor.getrgb(PATH_COLOURS[0])
    first, second, third = ((marked(path, word) == colour).all(axis=2) for word in range(3))
    assert first[40:60, 40:60].any()
    assert not first[600:].any()
    assert second[650, 850], "a dot at the cell of this word"
    assert second[350, 450], "a line from the cell before"
    assert not second[50, 50], "a ring at the cell of the first word"
    assert third[350, 850], "its last step"
    assert third[347:354, 447:454].any(), "and the one before, connected"
    assert third[347:354, 400:500].sum() < second[347:354, 400:500].sum(), "but thinner"
    seen = marked(replace(caption, paths=np.array([[0, 9, 18]] * 9)), 2)
    assert all((seen == ImageColor.getrgb(each)).all(axis=2).any() for each in PATH_COLOURS)
