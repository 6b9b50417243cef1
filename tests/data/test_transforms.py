"""Images to the network's input, and the geometry that leads back."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from tiny import noise

from captioner.data.augmentation import Augmentation
from captioner.data.transforms import ImageTransform

HEIGHT, WIDTH = 48, 80


def transform(**settings: object) -> ImageTransform:
    given = {"height_px": HEIGHT, "width_px": WIDTH, "mean": (0, 0, 0), "std": (1, 1, 1)}
    return ImageTransform(**{**given, **settings})  # type: ignore[arg-type]


def ramps(width: int, height: int) -> Image.Image:
    """Red tells the column of a pixel, green its row, blue is full."""
    array = np.full((height, width, 3), 255, np.uint8)
    array[..., 0] = np.round((np.arange(width) + 0.5) / width * 255)
    array[..., 1] = np.round((np.arange(height) + 0.5) / height * 255)[:, None]
    return Image.fromarray(array)


SIZES = [(80, 48), (90, 220), (640, 480), (7, 300)]
VIEWS = {
    "plain": (None, None),
    "mirrored": (Augmentation(flip=1.0), 1),
    "cropped": (Augmentation(min_area=0.3), 2),
    "cropped and mirrored": (Augmentation(flip=1.0, min_area=0.3), 5),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("resize", ["squash", "letterbox", "crop"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_geometry_says_where_every_input_pixel_comes_from(
    size: tuple[int, int], resize: str, view: str
) -> None:
    width, height = size
    augmentation, seed = VIEWS[view]
    generator = None if seed is None else np.random.default_rng(seed)
    reads = transform(resize=resize, interpolation="bicubic", augmentation=augmentation)
    inputs, geometry = reads(ramps(width, height), generator)
    assert inputs.shape == (3, HEIGHT, WIDTH)
    assert (geometry.photo_width_px, geometry.photo_height_px) == size
    boxes = np.array(
        [[geometry.cell_box_px(r, c, HEIGHT, WIDTH) for c in range(WIDTH)] for r in range(HEIGHT)]
    )
    x = (boxes[..., 0] + boxes[..., 2]) / 2
    y = (boxes[..., 1] + boxes[..., 3]) / 2
    red, green, blue = inputs.numpy()
    seen = blue > 0.5
    left, top = (geometry.left_px, geometry.top_px) if resize != "letterbox" else (0, 0)
    inside = (x > left) & (x < width) & (y > top) & (y < height)
    if view in ("plain", "mirrored"):
        np.testing.assert_array_equal(seen, inside)  # the padding is what lies beyond the photo
    assert (blue[seen] == 1).all()
    # Near the border of the photo a filter has pixels on one side only.
    cell = boxes[0, 0, 2] - boxes[0, 0, 0], boxes[0, 0, 3] - boxes[0, 0, 1]
    edge_x, edge_y = 3 * max(1, cell[0]), 3 * max(1, cell[1])
    away_x = seen & (x > left + edge_x) & (x < width - edge_x)
    away_y = seen & (y > top + edge_y) & (y < height - edge_y)
    step = 1.5 / 255
    np.testing.assert_allclose(
        red[away_x], x[away_x] / width, atol=step + 0.3 / width, rtol=0, err_msg="columns"
    )
    np.testing.assert_allclose(
        green[away_y], y[away_y] / height, atol=step + 0.3 / height, rtol=0, err_msg="rows"
    )
    # Nearer to it the order still holds, and never more than a few cells are missing.
    np.testing.assert_allclose(red[seen], x[seen] / width, atol=step + edge_x / width, rtol=0)
    np.testing.assert_allclose(green[seen], y[seen] / height, atol=step + edge_y / height, rtol=0)


def test_a_letterbox_keeps_the_shape_of_the_photo_and_pads_with_the_mean() -> None:
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    white = Image.new("RGB", (100, 300), "white")
    inputs, geometry = transform(resize="letterbox", mean=mean, std=std)(white)
    expected = torch.zeros(3, HEIGHT, WIDTH)
    expected[:, :, 32:48] = ((1 - torch.tensor(mean)) / torch.tensor(std))[:, None, None]
    torch.testing.assert_close(inputs, expected)
    assert geometry.width_px / WIDTH == pytest.approx(geometry.height_px / HEIGHT)
    assert geometry.left_px == pytest.approx(-200)


def test_a_crop_is_resizing_the_shorter_side_and_cropping_the_centre() -> None:
    photo = Image.fromarray(noise(96, 240))
    ours, _ = transform(resize="crop", interpolation="bilinear")(photo)
    resized = photo.resize((120, 48), Image.Resampling.BILINEAR).crop((20, 0, 100, 48))
    theirs = np.asarray(resized).transpose(2, 0, 1) / 255
    np.testing.assert_allclose(ours.numpy()[:, :, 2:-2], theirs[:, :, 2:-2], atol=1.01 / 255)
    upright = transform(resize="crop")(ramps(100, 300))[1]
    assert (upright.left_px, upright.width_px) == (0, 100)
    assert (upright.top_px, upright.height_px) == pytest.approx((120, 60))


def test_normalisation_is_torchvision_s() -> None:
    from torchvision.transforms import v2

    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    array = noise(HEIGHT, WIDTH)
    inputs, _ = transform(mean=mean, std=std)(Image.fromarray(array))
    reference = v2.Compose(
        [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)]
    )(Image.fromarray(array))
    assert inputs.dtype == torch.float32
    assert inputs.is_contiguous()
    torch.testing.assert_close(inputs, torch.as_tensor(reference), rtol=0, atol=2e-6)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_resizing_is_torchvision_s_with_antialiasing(interpolation: str) -> None:
    from torchvision.transforms import v2

    smooth = Image.fromarray(noise(9, 11)).resize((123, 97), Image.Resampling.BICUBIC)
    inputs, _ = transform(interpolation=interpolation)(smooth)
    modes = {"bilinear": v2.InterpolationMode.BILINEAR, "bicubic": v2.InterpolationMode.BICUBIC}
    resize = v2.Resize((HEIGHT, WIDTH), interpolation=modes[interpolation], antialias=True)
    reference = np.asarray(resize(v2.functional.to_image(smooth))).transpose(0, 1, 2) / 255
    np.testing.assert_allclose(inputs.numpy(), reference, atol=1.5 / 255)


ALL = Augmentation(flip=0.5, min_area=0.5, colour=0.4)


def test_a_view_depends_on_its_generator_alone() -> None:
    photo = Image.fromarray(noise(120, 70))

    def view(seed: int | None, global_seed: int) -> torch.Tensor:
        random.seed(global_seed)
        np.random.seed(global_seed)
        torch.manual_seed(global_seed)
        before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())
        generator = None if seed is None else np.random.default_rng(seed)
        inputs, _ = transform(augmentation=ALL)(photo, generator)
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before[:2]
        assert torch.equal(torch.get_rng_state(), before[2])
        return inputs

    with torch.random.fork_rng():
        assert torch.equal(view(7, 0), view(7, 1))
        assert not torch.equal(view(7, 0), view(8, 0))
        assert torch.equal(view(None, 0), transform()(photo)[0])


def test_crops_keep_the_share_the_shape_and_stay_inside() -> None:
    photo = Image.new("RGB", (300, 200))
    crop = transform(augmentation=Augmentation(min_area=0.6), height_px=4, width_px=4)
    generator = np.random.default_rng(0)
    shares = []
    for _ in range(400):
        _, found = crop(photo, generator)
        assert not found.flipped
        assert 0 <= found.left_px <= 300 - found.width_px + 1e-9
        assert 0 <= found.top_px <= 200 - found.height_px + 1e-9
        assert found.width_px / found.height_px == pytest.approx(1.5, rel=0.01)  # whole pixels
        shares.append(found.width_px * found.height_px / 60_000)
    assert 0.597 <= min(shares) < 0.62
    assert 0.98 < max(shares) <= 1
    assert np.mean(shares) == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize(("flip", "tolerance"), [(0.0, 0), (0.25, 0.07), (1.0, 0)])
def test_mirroring_and_colours_change_as_often_and_as_much_as_asked(
    flip: float, tolerance: float
) -> None:
    grey = Image.new("RGB", (8, 8), (100, 100, 100))
    changes = transform(augmentation=Augmentation(flip, colour=0.3), height_px=4, width_px=4)
    found = [changes(grey, np.random.default_rng(seed)) for seed in range(400)]
    assert np.mean([view.flipped for _, view in found]) == pytest.approx(flip, abs=tolerance)
    assert {(view.left_px, view.width_px) for _, view in found} == {(0, 8)}
    # Contrast and saturation change nothing on plain grey, so this is brightness alone.
    levels = [float(inputs.mean()) * 255 for inputs, _ in found]
    assert 69 <= min(levels) < 74
    assert 126 < max(levels) <= 131


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
def test_a_view_is_pillow_s_of_the_same_part(interpolation: str) -> None:
    smooth = Image.fromarray(noise(9, 11)).resize((123, 97), Image.Resampling.BICUBIC)
    crop = transform(interpolation=interpolation, augmentation=Augmentation(min_area=0.5))
    for image in (smooth, smooth.resize((500, 400))):  # the second is reduced in two steps
        pixels, view = crop.levels(image, np.random.default_rng(1))
        box = view.left_px, view.top_px, view.left_px + view.width_px, view.top_px + view.height_px
        assert all(side == int(side) for side in box)
        theirs = image.crop(tuple(map(int, box))).resize((WIDTH, HEIGHT), crop.resampling)
        difference = np.abs(pixels.astype(int) - np.asarray(theirs).astype(int))
        assert difference.mean() < 0.7, "as the filter of Pillow sees beyond the part"


def test_colours_are_those_of_pillow_s_enhancers_one_after_another() -> None:
    smooth = Image.fromarray(noise(9, 11) // 3 + 60).resize((WIDTH, HEIGHT))
    for seed in range(20):
        changes = transform(augmentation=Augmentation(colour=0.3))
        inputs, _ = changes(smooth, np.random.default_rng(seed))
        generator, expected = np.random.default_rng(seed), smooth
        generator.random(3 + 1)  # of the crop and the mirror image
        for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
            expected = enhance(expected).enhance(1.0 + generator.uniform(-0.3, 0.3))
        expected_inputs = np.asarray(expected, float).transpose(2, 0, 1) / 255
        np.testing.assert_allclose(inputs, expected_inputs, rtol=0, atol=3.1 / 255)


@pytest.mark.parametrize("resize", ["squash", "letterbox", "crop"])
def test_plain_surfaces_and_noise_show_nothing(resize: str) -> None:
    reads = transform(
        height_px=320, width_px=320, resize=resize, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)
    )

    def shows_something(image: Image.Image) -> bool:
        return reads.shows_something(reads.array(image)[0])

    for colour in ("white", "black", "grey", "navy", (128, 102, 76)):
        assert not shows_something(Image.new("RGB", (640, 480), colour))
    for size in (100, 640, 1500):
        assert not shows_something(Image.fromarray(noise(size, size)))
    drawn = Image.new("RGB", (640, 480), "white")
    drawn.paste("black", (300, 200, 360, 260))
    assert shows_something(drawn)
    waves = np.sin(np.arange(640) / 20)[None, :, None] * np.ones((480, 1, 3)) * 100 + 128
    assert shows_something(Image.fromarray(waves.astype(np.uint8)))
