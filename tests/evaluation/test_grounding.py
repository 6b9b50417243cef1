"""Attention correctness and pointing game: pixel by pixel, and on drawn objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from captioner.captioner import Captioner
from captioner.data.splits import CaptionedImage
from captioner.data.tokenizers import SubwordTokenizer
from captioner.data.vocabulary import Vocabulary
from captioner.evaluation.evaluate import measure_grounding
from captioner.evaluation.grounding import (
    CENTRE_SIGMA,
    Objects,
    category_names,
    category_of,
    cell_hits,
    centred_map,
    coverage,
    ground,
    named_categories,
    summary,
)
from captioner.types import Geometry
from captioner.visualization import Caption

WIDTH, HEIGHT = 80, 60
KEY = (0, 7)  # of the first file, the image of this number


def instances(tmp_path: Path, boxes: dict[str, list[float]]) -> Path:
    """A COCO file of one photo with rectangles, whose outlines are the left half of their boxes."""
    categories = [
        {"id": n, "name": name}
        for n, name in enumerate(sorted(set(category_names().values())), start=1)
    ]
    ids = {category["name"]: category["id"] for category in categories}
    annotations: list[dict[str, Any]] = []
    for number, (name, (x, y, w, h)) in enumerate(boxes.items(), start=1):
        outline = [x, y, x + w / 2, y, x + w / 2, y + h, x, y + h]
        annotations.append(
            {"id": number, "image_id": 7, "category_id": ids[name], "bbox": [x, y, w, h]}
            | {"segmentation": [outline], "area": w * h / 2, "iscrowd": 0}
        )
    path = tmp_path / "instances.json"
    image = {"id": 7, "file_name": "COCO_val2014_000000000007.jpg"}
    image |= {"width": WIDTH, "height": HEIGHT}
    content = {"images": [image], "categories": categories}
    path.write_text(json.dumps({**content, "annotations": annotations}))
    return path


def caption(words: list[str], maps: np.ndarray, geometry: Geometry) -> Caption:
    numbers = np.zeros(len(words), np.float32)
    return Caption(words=words, maps=maps, beta=None, log_probs=numbers, geometry=geometry)


GEOMETRIES = [
    Geometry(WIDTH, HEIGHT, 0, 0, WIDTH, HEIGHT),
    Geometry(WIDTH, HEIGHT, 0, 0, WIDTH, HEIGHT, flipped=True),
    Geometry(WIDTH, HEIGHT, 0, -10, WIDTH, WIDTH),  # letterbox
    Geometry(WIDTH, HEIGHT, 10, 0, HEIGHT, HEIGHT),  # centre crop
]


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_coverage_is_that_of_a_loop_over_fine_points(geometry: Geometry) -> None:
    mask = np.random.default_rng(0).random((HEIGHT, WIDTH)) < 0.4
    rows, columns = 3, 5
    covered, seen = coverage(mask, geometry, rows, columns)
    for row in range(rows):
        for column in range(columns):
            x0, y0, x1, y1 = geometry.cell_box_px(row, column, rows, columns)
            xs = np.linspace(x0, x1, 400, endpoint=False) + (x1 - x0) / 800
            ys = np.linspace(y0, y1, 400, endpoint=False) + (y1 - y0) / 800
            inside_x, inside_y = (xs >= 0) & (xs < WIDTH), (ys >= 0) & (ys < HEIGHT)
            on_photo = np.outer(inside_y, inside_x)
            values = mask[np.clip(ys, 0, HEIGHT - 1).astype(int)][
                :, np.clip(xs, 0, WIDTH - 1).astype(int)
            ]
            assert on_photo.mean() == pytest.approx(seen[row, column], abs=0.01)
            if on_photo.any():
                expected = (values & on_photo).sum() / on_photo.sum()
                assert covered[row, column] == pytest.approx(expected, abs=0.02)
            else:
                assert covered[row, column] == 0


def test_a_word_is_grounded_by_the_attention_on_its_object(tmp_path: Path) -> None:
    # The dog's outline is x 40 to 60, y 0 to 30: cells 2 of 4 in the upper of two rows.
    objects = Objects(instances(tmp_path, {"dog": [40, 0, 40, 30]}))
    maps = np.zeros((4, 2, 4), np.float32)
    maps[1, 0, 2], maps[1, 1, 0] = 0.75, 0.25  # "dog": three quarters on it
    maps[2], maps[3], maps[0] = 1 / 8, 1 / 8, 1 / 8
    words = ["a", "dog", "cat", "puppy"]
    found = list(ground(caption(words, maps, GEOMETRIES[0]), KEY, objects))
    assert [word.category for word in found] == ["dog", "dog"]
    larger = Geometry(3 * WIDTH, 3 * HEIGHT, 0, 0, 3 * WIDTH, 3 * HEIGHT)  # than its annotations
    (scaled, _) = ground(caption(words, maps, larger), KEY, objects)
    assert scaled.figures == pytest.approx(found[0].figures)
    assert found[0].figures["correctness"] == pytest.approx(0.75)
    assert (
        found[0].figures["correctness_uniform"]
        == found[1].figures["correctness"]
        == pytest.approx(1 / 8)
    )
    assert found[0].figures["correctness_centre"] > 1 / 8
    assert found[0].figures["hit"] == 1
    # Three cells: its own, the one to the left, whose centre (30, 15) is 10 px away; the one to
    # the right, at (70, 15), too; below, at (50, 45), 15 px and half a pixel.
    assert found[0].figures["hit_uniform"] == pytest.approx(3 / 8)
    assert found[0].figures["hit_centre"] == 0.5  # of the four cells at the centre, two hit


def test_the_centred_map_is_a_gaussian_at_the_middle_of_the_photo() -> None:
    """Also of a mirrored crop, which the middle of the photo is not the middle of."""
    geometry = Geometry(WIDTH, HEIGHT, 20, 0, HEIGHT, HEIGHT, flipped=True)
    expected = np.zeros((3, 4))
    for row, column in np.ndindex(3, 4):
        x0, y0, x1, y1 = geometry.cell_box_px(row, column, 3, 4)
        across, down = (x0 + x1) / 2 / WIDTH - 0.5, (y0 + y1) / 2 / HEIGHT - 0.5
        expected[row, column] = np.exp(-0.5 * (across**2 + down**2) / CENTRE_SIGMA**2)
    np.testing.assert_allclose(centred_map(geometry, 3, 4), expected / expected.sum())


def test_an_object_is_its_outline_and_without_one_its_box(tmp_path: Path) -> None:
    path = instances(tmp_path, {"dog": [40, 0, 40, 30], "cat": [0, 0, 10, 10]})
    content = json.loads(path.read_text())
    del content["annotations"][1]["segmentation"]
    path.write_text(json.dumps(content))
    objects = Objects(path)
    dog, cat = objects.mask(KEY, "dog"), objects.mask(KEY, "cat")
    assert (dog.sum(), cat.sum()) == (20 * 30, 10 * 10)
    assert objects.mask(KEY, "horse") is None


def test_photos_are_found_by_name_under_both_of_coco_s(tmp_path: Path) -> None:
    objects = Objects(instances(tmp_path, {}))
    assert objects.image(Path("a/COCO_val2014_000000000007.jpg")) == KEY
    assert objects.image(Path("val2017/000000000007.jpg")) == KEY
    assert objects.image(Path("7.jpg")) is None
    assert objects.image(Path("000000000008.jpg")) is None


def test_attention_on_the_bars_of_a_letterbox_does_not_count(tmp_path: Path) -> None:
    # The photo fills the middle row of three; the dog fills the photo.
    objects = Objects(instances(tmp_path, {"dog": [0, 0, 2 * WIDTH, HEIGHT]}))
    geometry = Geometry(WIDTH, HEIGHT, 0, -HEIGHT, WIDTH, 3 * HEIGHT)
    maps = np.zeros((2, 3, 2), np.float32)
    maps[0, 0], maps[0, 1, 0] = 0.4, 0.2  # mostly above the photo
    maps[1, 2, 1] = 1  # wholly below it
    partly, outside = ground(caption(["dog", "dog"], maps, geometry), KEY, objects)
    for name in ("correctness", "hit"):
        for kind in ("", "_uniform", "_centre"):
            assert partly.figures[name + kind] == pytest.approx(1)
    assert outside.figures["correctness"] == 0


def test_words_of_several_pieces_are_grounded_as_whole_words(tmp_path: Path) -> None:
    path = instances(tmp_path, {"dog": [40, 0, 40, 30], "skateboard": [0, 30, 40, 30]})
    whole = ["a", "dog", "skateboard"]
    maps = np.random.default_rng(0).dirichlet(np.ones(8), 5).reshape(5, 2, 4).astype(np.float32)
    joined = np.stack([maps[0], maps[1], maps[2:].mean(0)])
    written = caption(["▁a", "▁dog", "▁skate", "boa", "rd"], maps, GEOMETRIES[0])
    expected = list(ground(caption(whole, joined, GEOMETRIES[0]), KEY, Objects(path)))
    assert [word.category for word in expected] == ["dog", "skateboard"]

    image = CaptionedImage(tmp_path / "COCO_val2014_000000000007.jpg", ("a red disc",), 7)
    tiny.photo(1, WIDTH, HEIGHT)[0].save(image.path)
    model, config, words = tiny.model()
    subwords = Vocabulary([f"▁{word}" for word in words.words], SubwordTokenizer())
    captioner = Captioner(model, config, subwords)
    found = measure_grounding(captioner, {7: written}, [image], Objects(path))
    assert found["captions"]["num_words"] == 2
    for name, value in summary(expected)["by_category"]["skateboard"].items():
        assert found["captions"]["by_category"]["skateboard"][name] == pytest.approx(value)


def test_two_words_can_name_one_thing() -> None:
    assert named_categories(["hot", "dog", "dog"]) == [None, "hot dog", "dog"]
    for text, expected in {
        "a motor bike at a stop sign": {"bike": "motorcycle", "sign": "stop sign"},
        "traffic lights": {"lights": "traffic light"},
        "a man with a baby elephant": {"man": "person", "elephant": "elephant"},
        "a baby and adult dogs": {"baby": "person", "dogs": "dog"},
        "a passenger jet": {"jet": "airplane"},
        "a train in a train station by the bus stops": {"train": "train"},
    }.items():
        words = text.split()
        pairs = zip(words, named_categories(words), strict=True)
        assert {word: category for word, category in pairs if category} == expected


def test_a_point_hits_within_fifteen_pixels() -> None:
    mask = np.zeros((100, 100), bool)
    mask[50, 50] = True

    def point_hits(x: float, y: float) -> bool:
        return bool(cell_hits(mask, Geometry(100, 100, x - 1, y - 1, 2, 2), 1, 1)[0, 0])

    for x, y in ((50.5, 50.5), (65.5, 50.5), (35.5, 50.5), (50.5, 35.5), (61, 61)):
        assert point_hits(x, y), (x, y)
    for x, y in ((66, 50.5), (50.5, 34.9), (62, 62), (-200, -200), (500, 500)):
        assert not point_hits(x, y), (x, y)
    hits = cell_hits(mask, Geometry(100, 100, 0, 0, 100, 100), 10, 10)
    assert np.argwhere(hits).tolist() == [[4, 4], [4, 5], [5, 4], [5, 5]]


def test_words_of_the_published_list_name_categories_in_either_number() -> None:
    words = "men people geese knives buses couches puppies labrador".split()
    assert list(map(category_of, words)) == "person person bird knife bus couch dog dog".split()
    assert category_of("tennis rackets") == "tennis racket"
    assert category_of("grass") is category_of("") is category_of("the") is None
    assert len(set(category_names().values())) == 80


def test_the_other_words_of_the_caption_are_a_control(tmp_path: Path) -> None:
    objects = Objects(instances(tmp_path, {"dog": [40, 0, 40, 30]}))
    maps = np.zeros((3, 2, 4), np.float32)
    maps[0, 0, 2] = 1.0  # "a": on the dog
    maps[1, 0, 2] = 1.0  # "dog": on it too
    maps[2, 1, 0] = 1.0  # "sleeps": not
    (word,) = ground(caption(["a", "dog", "sleeps"], maps, GEOMETRIES[0]), KEY, objects)
    assert (word.figures["correctness"], word.figures["correctness_others"]) == pytest.approx(
        (1.0, 0.5)
    )
    (alone,) = ground(caption(["dog"], maps[:1], GEOMETRIES[0]), KEY, objects)
    assert alone.figures["correctness_others"] == alone.figures["correctness_uniform"]
    assert alone.figures["hit_others"] == alone.figures["hit_uniform"]
    found = summary([word, alone])
    assert found["num_words"] == 2
    gains = [each.figures["correctness_gain"] for each in (word, alone)]
    assert gains[0] == pytest.approx(0.5)
    assert found["correctness_gain"] == pytest.approx(np.mean(gains))
    low, high = found["intervals"]["correctness_gain"]
    assert low == high == pytest.approx(np.mean(gains)), "one photo is drawn again and again"
    assert found["by_category"]["dog"]["hit"] == found["hit"]
    assert summary([]) == {"num_words": 0}
