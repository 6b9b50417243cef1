from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from captioner.errors import ImageError
from captioner.types import Geometry
from captioner.visualization.heat import attention_heat, peak
from captioner.visualization.overlay import overlay, resize_captioned, word_overlay
from captioner.visualization.sheet import attention_sheet
from captioner.visualization.style import OverlayStyle

SENTENCE = (
    "a very long description of a scene where several people are standing around a table that is "
    "covered with food and bottles of wine today"
).split()
SHAPES = [(320, 240), (240, 320), (4000, 3000), (1000, 100), (100, 1000), (1, 1), (3, 2000)]
MARGIN = 40  # the sheet's own is wider; letters may reach a little into it
MAGENTA = (255, 0, 255)  # is nowhere on a sheet but in a photo of that colour


def panels_of(sheet):
    """Boxes of the panels of a sheet whose photo is magenta, in reading order."""
    pixels = np.asarray(sheet)
    rows, columns = np.nonzero((pixels == MAGENTA).all(axis=2))
    width, height = int(np.ptp(columns)) + 1, int(np.ptp(rows)) + 1
    assert len(rows) == width * height  # a whole rectangle
    ink = (pixels < 255).any(axis=2)
    corners = ink[1:, 1:] & ~ink[:-1, 1:] & ~ink[1:, :-1]  # white above and to the left
    boxes = []
    for top, left in (np.argwhere(corners) + 1).tolist():
        box = left, top, left + width, top + height
        inked = ink[top : box[3], left : box[2]]
        # Marks on the panels are white, so most of a panel is ink, and corners lie inside it too.
        inside = any(x0 <= left < x1 and y0 <= top < y1 for x0, y0, x1, y1 in boxes)
        if not inside and inked.shape == (height, width) and inked.mean() > 0.9:
            boxes.append(box)
    return boxes


@pytest.mark.parametrize("count", [0, 1, 25])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_sheet_has_sane_dimensions_white_margins_and_a_photo_in_its_own_shape(
    make_caption, shape, count
):
    photo = Image.new("RGB", shape, MAGENTA)
    sheet = attention_sheet(photo, make_caption(shape, SENTENCE[:count]))
    assert 600 <= sheet.width <= 2800
    assert 300 <= sheet.height <= 4500
    pixels = np.asarray(sheet)
    margin = np.ones(pixels.shape[:2], dtype=bool)
    margin[MARGIN:-MARGIN, MARGIN:-MARGIN] = False
    assert pixels[margin].min() == 255
    rows, columns = np.nonzero((pixels == MAGENTA).all(axis=2))
    width, height = np.ptp(columns) + 1, np.ptp(rows) + 1
    assert max(width, height) <= 720
    exact = max(width, height) * min(shape) / max(shape)
    assert abs(min(width, height) - max(1, exact)) <= 1


@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("count", [1, 7])
def test_the_panels_are_the_words_overlays_in_reading_order(make_caption, count, smooth):
    photo = Image.new("RGB", (400, 300), MAGENTA)
    # Peaks away from the border: a white mark there would hide a corner from panels_of.
    inner = np.random.default_rng(count).dirichlet(np.full(35, 0.3), size=count)
    maps = np.pad(inner.reshape(count, 5, 7), ((0, 0), (1, 1), (1, 1)))
    caption = make_caption((400, 300), SENTENCE[:count], maps=maps)
    style = OverlayStyle("colour", smooth=smooth, opacity=0.5)
    sheet = attention_sheet(photo, caption, style)
    boxes = panels_of(sheet)
    assert len(boxes) == 1 + count
    size = boxes[0][2] - boxes[0][0], boxes[0][3] - boxes[0][1]
    small = resize_captioned(photo, caption.geometry, size)
    for index, box in enumerate(boxes[1:]):
        expected = word_overlay(small, caption, index, style)
        difference = np.asarray(sheet.crop(box), int) - np.asarray(expected, int)
        assert np.abs(difference).max() <= 1


def test_a_sharp_word_does_not_change_the_panel_of_another(make_caption):
    photo = Image.new("RGB", (400, 300), MAGENTA)
    broad = np.random.default_rng(0).dirichlet(np.full(63, 2.0)).reshape(7, 9)
    sharp = np.zeros((7, 9))
    sharp[3, 4] = 1
    panels = []
    for other in (broad, sharp):
        caption = make_caption((400, 300), ["a", "dog"], maps=[broad, other])
        sheet = attention_sheet(photo, caption)
        panels.append([sheet.crop(box).tobytes() for box in panels_of(sheet)])
    assert panels[0][1] == panels[1][1]
    assert panels[0][2] != panels[1][2]


def test_a_sheet_of_flat_maps_says_so_in_a_line(make_caption):
    photo = Image.new("RGB", (400, 300), MAGENTA)
    flat = make_caption((400, 300), ["a", "dog"], maps=np.full((2, 63), 1 / 63))
    sharp = make_caption((400, 300), ["a", "dog"])
    tops = [panels_of(attention_sheet(photo, caption))[0][1] for caption in (sharp, flat)]
    assert 20 < tops[1] - tops[0] < 50


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("background", [30, 128, 240])
def test_the_most_attended_tenth_stands_out_of_the_photo(make_caption, background, seed):
    # Blobs as models make them, from 3 times uniform up, on a dark, a grey and a bright photo.
    rng = np.random.default_rng(seed)
    pixels = rng.normal(background, 8, (280, 360, 3)).clip(0, 255)
    photo = Image.fromarray(pixels.astype(np.uint8))
    y, x = np.mgrid[:7, :9] + 0.5
    for strength in (0.15, 0.5, 2.0):
        cells = 0.02 + strength * np.exp(
            -((x - rng.uniform(1, 8)) ** 2 + (y - rng.uniform(1, 6)) ** 2) / 3
        )
        cells /= cells.sum()
        assert peak(cells) >= 3
        assert contrast(photo, make_caption((360, 280), ["dog"], maps=[cells]), 0) >= 1.5


def contrast(photo, caption, index):
    """Luminance of the most attended tenth over that of the rest, both relative to the photo."""
    heat = attention_heat(
        caption.maps[index], caption.geometry, width_px=photo.width, height_px=photo.height
    )
    drawn, plain = (
        np.asarray(picture.convert("RGB")) @ [0.2126, 0.7152, 0.0722]
        for picture in (overlay(photo, heat), photo)
    )
    most = heat >= np.quantile(heat, 0.9)
    return drawn[most].mean() / plain[most].mean() / (drawn[~most].mean() / plain[~most].mean())


@pytest.mark.parametrize("model", ["soft", "hard"])
def test_the_words_of_the_bundled_models_stand_out_of_their_photo(model):
    from matplotlib import cbook

    from captioner.captioner import Captioner

    with cbook.get_sample_data("grace_hopper.jpg") as file:
        photo = Image.open(file).convert("RGB")
    caption = Captioner.from_pretrained(model, device="cpu").caption(photo)
    small = resize_captioned(photo, caption.geometry, (256, 300))
    clear = [i for i in range(len(caption.words)) if peak(caption.maps[i]) >= 3]
    assert clear
    for index in clear:
        assert contrast(small, caption, index) >= 1.5, caption.words[index]


def test_a_sheet_does_not_grow_with_the_photo(make_caption):
    sizes = {
        attention_sheet(Image.new("RGB", size), make_caption(size, SENTENCE[:5])).size
        for size in ((320, 240), (640, 480), (4000, 3000))
    }
    assert len(sizes) == 1


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P"])
def test_the_photo_is_not_changed(make_caption, mode):
    pixels = np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    photo = Image.fromarray(pixels).convert(mode)
    before = photo.tobytes()
    attention_sheet(photo, make_caption((90, 60), SENTENCE[:3], hard=True))
    assert (photo.tobytes(), photo.mode, photo.size) == (before, mode, (90, 60))


def test_the_sampled_cell_is_outlined_on_its_own_words_panel(make_caption):
    photo = Image.new("RGB", (900, 700), MAGENTA)
    maps = np.full((2, 7, 9), 0.2 / 62)
    maps[0, 2, 1] = maps[1, 4, 6] = 0.8
    soft = make_caption((900, 700), ["a", "dog"], maps=maps)
    hard = make_caption((900, 700), ["a", "dog"], maps=maps, hard=True)
    with_outline, without = attention_sheet(photo, hard), attention_sheet(photo, soft)
    boxes = panels_of(without)
    for box, (row, column) in zip(boxes[1:], [(2, 1), (4, 6)], strict=True):
        changed = np.asarray(with_outline.crop(box)) != np.asarray(without.crop(box))
        rows, columns = np.nonzero(changed.any(axis=2))
        cell_width, cell_height = (box[2] - box[0]) / 9, (box[3] - box[1]) / 7
        drawn = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
        expected = (
            column * cell_width,
            row * cell_height,
            (column + 1) * cell_width,
            (row + 1) * cell_height,
        )
        np.testing.assert_allclose(drawn, expected, atol=2)
    photo_box = boxes[0]
    assert with_outline.crop(photo_box).tobytes() == without.crop(photo_box).tobytes()


@pytest.mark.parametrize("shape", [(300, 500), (400, 300)])
def test_the_key_has_a_line_more_for_sampled_cells(make_caption, shape):
    # One word on a portrait makes a narrow sheet, where the key stands below the legend.
    photo = Image.new("RGB", shape, MAGENTA)
    maps = np.full((3, 7, 9), (1 - 2.5 / 63) / 62)  # neither flat nor with a peak to mark
    maps[:, 3, 4] = 2.5 / 63
    for words in (["dog"], ["a", "brown", "dog"]):
        count = len(words)
        soft, hard = (
            attention_sheet(photo, make_caption(shape, words, maps=maps[:count], hard=hard))
            for hard in (False, True)
        )
        ink = [np.flatnonzero((np.asarray(sheet) < 255).any(axis=(1, 2))) for sheet in (soft, hard)]
        assert ink[1][-1] - ink[0][-1] > 10
        assert hard.height - ink[1][-1] > MARGIN


def test_very_long_words_stay_in_their_column(make_caption):
    photo = Image.new("RGB", (400, 300), MAGENTA)
    caption = make_caption((400, 300), ["antidisestablishmentarianism" * 9] * 5)
    sheet = attention_sheet(photo, caption)
    boxes = panels_of(sheet)
    for box in boxes:
        between = sheet.crop((box[2] + 2, box[1], box[2] + 30, box[3] + 80))
        assert np.asarray(between).min() == 255


def test_long_captions_wrap_in_the_title(make_caption):
    photo = Image.new("RGB", (400, 300), MAGENTA)
    caption = make_caption((400, 300), ["dog"])
    tops = []
    for text in ("dog", " ".join(SENTENCE), " ".join(SENTENCE * 40)):
        object.__setattr__(caption, "text", text)
        tops.append(panels_of(attention_sheet(photo, caption))[0][1])
    assert tops[0] < tops[1] < tops[2] < 500


def test_words_that_are_no_plain_text_are_drawn(make_caption):
    photo = Image.new("RGB", (40, 30), MAGENTA)
    odd = ["", "two\nlines", "\x00", "<unk>", "東京", "é", "\u202e", "\ud800"]
    sheet = attention_sheet(photo, make_caption((40, 30), odd))
    assert len(panels_of(sheet)) == 1 + len(odd)


def test_a_letterboxed_photo_shows_no_padding(make_caption):
    photo = Image.new("RGB", (400, 200), MAGENTA)
    maps = np.zeros((1, 8, 8))
    maps[0, :2] = maps[0, -2:] = 1 / 32  # all on the padding
    geometry = Geometry(400, 200, 0, -100, 400, 400)
    caption = make_caption((400, 200), ["dog"], maps=maps, rows=8, columns=8, geometry=geometry)
    sheet = attention_sheet(photo, caption, OverlayStyle(smooth=False))
    panel = sheet.crop(panels_of(sheet)[1])
    assert len(panel.getcolors()) == 1


def test_a_photo_of_another_size_is_refused(make_caption):
    with pytest.raises(ImageError, match="upright"):
        attention_sheet(Image.new("RGB", (30, 40)), make_caption((40, 30), ["dog"]))


def test_real_photos_make_sheets_quickly_enough_to_caption_folders(shared_data, make_caption):
    from time import perf_counter

    from captioner.data.transforms import open_image

    paths = sorted((shared_data / "coco-tiny" / "val2017").glob("*.jpg"))[:3]
    assert paths
    fastest = float("inf")
    for path in paths:
        photo = open_image(path)
        caption = make_caption(photo.size, SENTENCE[:10])
        start = perf_counter()
        sheet = attention_sheet(photo, caption)
        fastest = min(fastest, perf_counter() - start)
        assert sheet.getcolors(maxcolors=1000) is None  # more than a thousand
    assert fastest < 1.0  # 0.06 s on an idle core; a busy machine may take many times that
