from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from captioner.data.images import open_image
from captioner.data.transforms import Augmentation, ImageTransform
from captioner.types import Geometry
from captioner.visualization.heat import attention_heat, peaks

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
        file, exif = io.BytesIO(), Image.Exif()
        exif[0x0112] = 6  # stored on its side: turn clockwise by a quarter to see it upright
        photo_with_spot(640, 400, 420, 170).save(file, format="JPEG", quality=95, exif=exif)
        photo = open_image(file.getvalue())
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
    heat = attention_heat(hot / hot.sum(), geometry, photo.size, smooth=smooth)
    x, y = centre_of(heat)
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
