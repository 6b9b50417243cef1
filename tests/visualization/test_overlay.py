from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from captioner.errors import ConfigError, ImageError
from captioner.types import Geometry
from captioner.visualization.heat import attention_heat
from captioner.visualization.overlay import (
    cells_are_visible,
    frequent_steps,
    mark_cells,
    overlay,
    resize_captioned,
)
from captioner.visualization.style import (
    COLOUR_MAPS,
    STYLES,
    OverlayStyle,
    colour_table,
    effect_tables,
    scale_levels,
)


def noise(width, height, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("name", COLOUR_MAPS)
def test_colours_are_those_of_matplotlib_and_grow_lighter_with_heat(name):
    from matplotlib import colormaps

    table = colour_table(name)
    assert table.shape == (256, 3)
    np.testing.assert_allclose(table, np.array(colormaps[name].colors) * 255, atol=1.01)
    luminance = table @ [0.2126, 0.7152, 0.0722]
    assert (luminance[8:] > luminance[:-8]).all()


def position(heat):
    """Where an attention stands on the scale, by a formula of its own: 0.5 to 16, logarithmic."""
    return min(max((math.log2(max(heat, 1e-9)) + 1) / 5, 0), 1)


def some_heat():
    return (2 ** np.random.default_rng(1).uniform(-3, 6, (6, 8))).astype(np.float32)


@pytest.mark.parametrize("name", COLOUR_MAPS)
def test_colour_is_a_mixture_of_the_grey_photo_and_the_colour_of_the_heat(name):
    photo, heat = noise(8, 6), some_heat()
    painted = np.asarray(overlay(photo, heat, OverlayStyle("colour", True, name, 0.7)))
    grey, table = np.asarray(photo.convert("L"), dtype=float), colour_table(name)
    for y in range(6):
        for x in range(8):
            level = int(position(heat[y, x]) * 255 + 0.5)
            expected = 0.3 * grey[y, x] + 0.7 * table[level]
            np.testing.assert_allclose(painted[y, x], expected, atol=1.01)


def test_light_dims_the_photo_and_screens_it_with_a_warm_white():
    photo, heat = noise(8, 6), some_heat()
    painted = np.asarray(overlay(photo, heat))
    pixels = np.asarray(photo, dtype=float)
    for y in range(6):
        for x in range(8):
            t = position(heat[y, x])
            rise = min(t / 0.75, 1)
            kept = 3 * rise**2 - 2 * rise**3
            for channel, white in enumerate((1.0, 0.95, 0.82)):
                glow = 0.7 * min(max((t - 0.35) / 0.6, 0), 1) * white
                lit = 255 - (255 - kept * pixels[y, x, channel]) * (1 - glow)
                expected = 0.25 * pixels[y, x, channel] + 0.75 * lit
                assert painted[y, x, channel] == pytest.approx(expected, abs=2.5)


def test_the_mask_dims_by_the_place_on_the_scale():
    photo, heat = noise(8, 6), some_heat()
    painted = np.asarray(overlay(photo, heat, OverlayStyle("mask", opacity=0.9)), dtype=float)
    kept = 1 - 0.9 * (1 - np.vectorize(position)(heat))
    np.testing.assert_allclose(painted, np.asarray(photo) * kept[..., None], atol=1.5)


@pytest.mark.parametrize("kind", ["light", "colour", "mask"])
def test_without_opacity_the_photo_is_left(kind):
    photo = noise(8, 6)
    expected = photo.convert("L").convert("RGB") if kind == "colour" else photo
    painted = overlay(photo, some_heat(), OverlayStyle(kind, opacity=0))
    np.testing.assert_array_equal(np.asarray(painted), np.asarray(expected))


def test_three_times_uniform_is_plainly_visible_alongside_fifteen():
    grey = Image.new("RGB", (4, 1), (120, 120, 120))
    heat = np.array([[0.5, 1.0, 3.0, 15.0]])
    low, uniform, moderate, high = np.asarray(overlay(grey, heat))[0].mean(axis=1)
    assert low < uniform < moderate < high
    assert moderate > 1.5 * uniform
    assert low > 25  # the dimmed part can still be recognised


@pytest.mark.parametrize("kind", ["light", "colour", "mask"])
def test_attention_below_the_threshold_is_left_out(kind):
    photo, heat = noise(8, 6), some_heat()
    style = OverlayStyle(kind, threshold=3.0)
    painted = np.asarray(overlay(photo, heat, style))
    above = np.asarray(overlay(photo, heat, OverlayStyle(kind)))
    nothing = np.asarray(overlay(photo, np.zeros_like(heat), style))
    below = heat < 3
    assert below.any()
    assert not below.all()
    np.testing.assert_array_equal(painted[~below], above[~below])
    np.testing.assert_array_equal(painted[below], nothing[below])


@pytest.mark.parametrize("kind", ["light", "mask"])
def test_effects_grow_brighter_with_attention(kind):
    factor, offset = effect_tables(kind, "viridis")
    for value in (0, 40, 128, 255):
        assert (np.diff(value * factor + offset, axis=0) >= -1e-9).all()
    assert factor.min() == 0
    assert factor.max() <= 1


def test_levels_beyond_the_scale_are_its_ends():
    levels = scale_levels(np.array([0.0, 0.5, 1.0, 4.0, 16.0, 1000.0]))
    assert levels.tolist() == [0, 0, 51, 153, 255, 255]


@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("size", [(640, 420), (300, 500)])
@pytest.mark.parametrize("cell", [(2, 3), (4, 6)])
def test_an_overlay_is_centred_on_the_attended_cell(size, cell, smooth):
    width, height = size
    photo = noise(width, height)
    geometry = Geometry(width, height, 0, 0, width, height, flipped=True)
    cells = np.zeros((7, 9))
    cells[cell] = 1
    heat = attention_heat(cells, geometry, width_px=width, height_px=height, smooth=smooth)
    style = OverlayStyle("colour", opacity=1.0)
    hot = np.asarray(overlay(photo, heat, style), dtype=float)
    cold = np.asarray(overlay(photo, np.zeros_like(heat), style), dtype=float)
    added = np.abs(hot - cold).sum(axis=2)
    y, x = np.mgrid[:height, :width] + 0.5
    x0, y0, x1, y1 = geometry.cell_box_px(*cell, 7, 9)
    assert (added * x).sum() / added.sum() == pytest.approx((x0 + x1) / 2, abs=2)
    assert (added * y).sum() / added.sum() == pytest.approx((y0 + y1) / 2, abs=2)


def test_uniform_attention_gives_one_tint():
    grey = Image.new("RGB", (97, 61), (90, 90, 90))
    geometry = Geometry(97, 61, 0, 0, 97, 61)
    heat = attention_heat(np.full((14, 14), 1 / 196), geometry, width_px=97, height_px=61)
    for kind in STYLES:
        assert len(overlay(grey, heat, OverlayStyle(kind)).getcolors()) == 1, kind
    assert max(overlay(grey, heat).getpixel((0, 0))) < 45  # dim


def test_the_photo_is_not_changed():
    photo = noise(20, 10)
    before = photo.tobytes()
    painted = overlay(photo, np.full((10, 20), 3.0))
    assert painted.tobytes() != before
    small = resize_captioned(photo, Geometry(20, 10, 0, 0, 20, 10), (5, 5))
    small.paste("red", (0, 0, 5, 5))
    assert photo.tobytes() == before
    same_size = resize_captioned(photo, Geometry(20, 10, 0, 0, 20, 10), (20, 10))
    same_size.paste("red", (0, 0, 5, 5))
    assert photo.tobytes() == before


def test_settings_that_cannot_be_used_are_named():
    with pytest.raises(ConfigError, match="colour_map: jet is not .*viridis or cividis"):
        OverlayStyle(colour_map="jet")
    with pytest.raises(ConfigError, match="kind: fog is not .*light, colour, contour or mask"):
        OverlayStyle("fog")
    for opacity in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="opacity"):
            OverlayStyle(opacity=opacity)
    for threshold in (-1, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="threshold"):
            OverlayStyle(threshold=threshold)
    with pytest.raises(ValueError, match="heat"):
        overlay(noise(4, 4), np.zeros((4, 5)))


def test_the_steps_of_paths_are_counted_and_the_rarest_left_out():
    paths = np.array([[0, 5], [0, 5], [0, 5], [1, 5], [1, 5], [2, 2], [2, 2], [3, 0], [3, 1]])
    assert frequent_steps(paths, 1) == [(0, 5, 3), (1, 5, 2), (2, 2, 2), (3, 0, 1)]
    assert frequent_steps(paths, 0) == [(0, 0, 3), (1, 1, 2), (2, 2, 2), (3, 3, 2)]


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA"])
def test_photos_of_any_mode_are_resized_in_colour(mode):
    photo = noise(40, 20).convert(mode)
    small = resize_captioned(photo, Geometry(40, 20, 0, 0, 40, 20), (13, 7))
    expected = photo.convert("RGB").resize((13, 7), Image.Resampling.LANCZOS)
    assert small.mode == "RGB"
    np.testing.assert_allclose(np.asarray(small, int), np.asarray(expected, int), atol=2)


def test_a_photo_that_was_not_turned_upright_is_refused():
    with pytest.raises(ImageError, match=r"is 40 x 20 pixels, but .* of 20 x 40"):
        resize_captioned(noise(40, 20), Geometry(20, 40, 0, 0, 20, 40), (10, 20))


@pytest.mark.parametrize("scale", [0.5, 1, 3])
def test_the_outline_runs_along_the_border_of_the_sampled_cell(make_caption, scale):
    geometry = Geometry(900, 700, 0, -100, 900, 910, flipped=True)
    maps = np.zeros((1, 7, 9))
    maps[0, 3, 2] = 1
    caption = make_caption((900, 700), ["dog"], maps=maps, geometry=geometry, hard=True)
    image = Image.new("RGB", (round(900 * scale), round(700 * scale)), (90, 90, 90))
    mark_cells(image, caption, 0)
    white = np.asarray(image).min(axis=2) == 255
    rows, columns = np.flatnonzero(white.any(axis=1)), np.flatnonzero(white.any(axis=0))
    drawn = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
    box = np.array(geometry.cell_box_px(3, 2, 7, 9)) * scale
    np.testing.assert_allclose(drawn, box, atol=1)
    middle = round((box[0] + box[2]) / 2), round((box[1] + box[3]) / 2)
    assert image.getpixel(middle) == (90, 90, 90)


def test_the_corners_of_the_most_attended_cell_are_marked_where_it_stands_out(make_caption):
    maps = np.full((2, 7, 9), 0.99 / 62)
    maps[0, 3, 2] = 0.2
    maps[1, 3, 2] = 0.02
    geometry = Geometry(900, 700, 0, 0, 900, 700, flipped=True)
    caption = make_caption((900, 700), ["a", "dog"], maps=maps, geometry=geometry)
    image = Image.new("RGB", (900, 700), (90, 90, 90))
    mark_cells(image, caption, 1)
    assert len(image.getcolors()) == 1
    mark_cells(image, caption, 0)
    white = np.asarray(image).min(axis=2) == 255
    rows, columns = np.flatnonzero(white.any(axis=1)), np.flatnonzero(white.any(axis=0))
    assert (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1) == (600, 300, 700, 400)
    assert not white[300:400, 640:660].any()  # corners alone
    assert not white[340:360].any()


def test_a_sampled_cell_may_lie_beyond_the_photo(make_caption):
    maps = np.zeros((2, 7, 9))
    maps[0, 0, 4] = maps[1, 3, 4] = 1
    letterbox = Geometry(900, 100, 0, -400, 900, 900)
    caption = make_caption((900, 100), ["a", "dog"], maps=maps, geometry=letterbox, hard=True)
    assert [cells_are_visible(caption, cells) for cells in caption.cells] == [False, True]
    image = noise(900, 100)
    before = image.tobytes()
    mark_cells(image, caption, 0)
    assert image.tobytes() == before
    mark_cells(image, caption, 1)
    assert image.tobytes() != before


def test_soft_attention_has_no_cell_to_outline(make_caption):
    image = noise(30, 20)
    before = image.tobytes()
    mark_cells(image, make_caption((30, 20), ["dog"], maps=np.full((1, 7, 9), 1 / 63)), 0)
    assert image.tobytes() == before


def test_drawing_never_imports_pyplot():
    # pyplot takes a second to start, and asks for a screen.
    program = (
        "import sys; import captioner.visualization as r; from PIL import Image; import numpy as np;"
        "from captioner.types import Caption, Geometry;"
        "caption = Caption(['dog'], np.full((1, 2, 2), 0.25), np.ones(1), np.zeros(1),"
        "                  Geometry(9, 9, 0, 0, 9, 9));"
        "r.attention_sheet(Image.new('RGB', (9, 9)), caption);"
        "assert 'matplotlib' in sys.modules;"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("size", [(3000, 200), (200, 3000)])
@pytest.mark.parametrize("kind", ["corners", "box", "paths"])
def test_marks_of_an_elongated_photo_do_not_fill_its_cells(make_caption, size, kind):
    maps = np.zeros((2, 14, 14))
    maps[:, 7, 6] = 1
    caption = make_caption(size, ["a", "dog"], maps=maps, rows=14, columns=14, hard=kind == "box")
    if kind == "paths":  # all steps are beside each other
        caption = replace(caption, paths=np.array([[89, 103], [103, 105], [117, 119]]))
    image = Image.new("RGB", size, (90, 90, 90))
    mark_cells(image, caption, 1)
    x0, y0, x1, y1 = (round(side) for side in caption.geometry.cell_box_px(7, 6, 14, 14))
    pixels = np.array(image)
    cell = pixels[y0:y1, x0:x1]
    assert 0.02 < (cell == 255).all(axis=2).mean() < 0.6
    assert (cell == 90).all(axis=2).mean() > 0.2  # of the photo
    if kind != "paths":  # nothing but the rim is beyond the cell
        pixels[y0 - 1 : y1 + 1, x0 - 1 : x1 + 1] = 90
        assert (pixels == 90).all()


@pytest.mark.parametrize("hard", [False, True])
def test_marks_of_a_large_white_photo_have_a_rim_in_step_with_it(make_caption, hard):
    maps = np.zeros((1, 7, 9))
    maps[0, 3, 2] = 1
    caption = make_caption((2048, 1536), ["dog"], maps=maps, hard=hard)
    image = Image.new("RGB", (2048, 1536), "white")
    mark_cells(image, caption, 0)
    left, top, *_ = caption.geometry.cell_box_px(3, 2, 7, 9)
    black = np.asarray(image)[round(top) + 20, : round(left) + 5].max(axis=1) == 0
    assert black.sum() == 3
