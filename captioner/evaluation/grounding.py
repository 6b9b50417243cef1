"""Does attention lie on the object that a word names?

Attention correctness: Liu et al. 2017; pointing game: Zhang et al. 2018, "Excitation Backprop".
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from captioner.data.splits import ImagePath
from captioner.data.vocabulary import Tokenizer
from captioner.errors import DataError
from captioner.evaluation.intervals import interval_of_mean
from captioner.types import Geometry
from captioner.visualization import Caption

TOLERANCE_PX = 15.0  # of the pointing game, as its authors have it
CENTRE_SIGMA = 0.25  # of the centred map, in sides of the image


@dataclass(frozen=True)
class GroundedWord:
    """One word of a caption that names an object in the image.

    Attributes:
        figures: `correctness` (share of the map inside the object) and `hit` (whether its top cell
            is) of the model's map, from 0 to 1; those of the controls: `..._uniform` (the chance of
            a random cell), `..._centre` (a Gaussian, where photographers put their objects), and
            `..._others` (the mean map of the caption's other words, uniform where it has none);
            and `..._gain`, the model's minus `..._others`.
    """

    image: Hashable  # its key in the annotations
    category: str
    figures: dict[str, float]


def ground(caption: Caption, image: ImageKey, objects: Objects) -> Iterator[GroundedWord]:
    """Yield the words of a caption that name a category of which the image shows an object.

    Cells or parts of them on a letterbox's bars do not count.
    """
    rows, columns = caption.maps.shape[-2:]
    uniform = np.full((rows, columns), 1 / (rows * columns))
    centre = centred_map(caption.geometry, rows, columns)
    total = caption.maps.sum(0, dtype=np.float64)
    others_count = len(caption.words) - 1
    for category, attention in zip(named_categories(caption.words), caption.maps, strict=True):
        if category is None or (mask := objects.mask(image, category)) is None:
            continue
        covered, seen = coverage(mask, caption.geometry, rows, columns)
        hits = cell_hits(mask, caption.geometry, rows, columns)
        others = (total - attention) / others_count if others_count else uniform
        maps = {"": attention, "_uniform": uniform, "_centre": centre, "_others": others}
        figures = {}  # cells, or parts of them, on a letterbox's bars do not count
        for kind, weights in maps.items():
            on_image = (weights * seen).sum()
            share = (weights * seen * covered).sum() / on_image if on_image > 0 else 0.0
            figures[f"correctness{kind}"] = float(share)
            figures[f"hit{kind}"] = float(hits.flat[(weights * seen).argmax()])
        chance = figures["hit_uniform"] = float(np.average(hits, weights=seen))
        if not others_count:
            figures["hit_others"] = chance
        # of several cells that are as near to the middle, the mean
        nearest = np.isclose(centre * seen, (centre * seen).max())
        figures["hit_centre"] = float(hits[nearest].mean())
        for name in ("correctness", "hit"):
            figures[f"{name}_gain"] = figures[name] - figures[f"{name}_others"]
        yield GroundedWord(image, category, figures)


def in_whole_words(caption: Caption, tokenizer: Tokenizer) -> Caption:
    """Return a caption of whole words, whose maps are the means of their pieces' maps."""
    starts = tokenizer.word_starts(caption.words)
    lengths = np.diff([*starts, len(caption.words)])
    pieces = zip(starts, lengths, strict=True)
    sums = np.add.reduceat(caption.maps, np.array(starts, np.int64))
    return replace(  # other figures stay those of the pieces
        caption,
        words=[tokenizer.join(caption.words[start : start + length]) for start, length in pieces],
        maps=sums / lengths[:, None, None].astype(np.float32),
    )


def centred_map(geometry: Geometry, rows: int, columns: int) -> np.ndarray:
    """Return a Gaussian [rows, columns] at the middle of the image, a quarter of its sides wide."""

    def side(cells: int, start_px: float, length_px: float, image_px: int) -> np.ndarray:
        middles = start_px + (np.arange(cells) + 0.5) * length_px / cells
        return np.exp(-0.5 * ((middles / image_px - 0.5) / CENTRE_SIGMA) ** 2)

    down = side(rows, geometry.top_px, geometry.height_px, geometry.photo_height_px)
    across = side(columns, geometry.left_px, geometry.width_px, geometry.photo_width_px)
    weights = np.outer(down, across[::-1] if geometry.flipped else across)
    return weights / weights.sum()


def coverage(
    mask: np.ndarray, geometry: Geometry, rows: int, columns: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return [rows, columns] twice: how much of each cell a mask covers, and how much is image.

    The first is a share of the cell's part on the image; cells outside the image have 0 of both.
    """
    g = geometry
    down = _overlaps(mask.shape[0], g.photo_height_px, g.top_px, g.height_px, rows)
    across = _overlaps(mask.shape[1], g.photo_width_px, g.left_px, g.width_px, columns)
    if g.flipped:
        across = across[::-1]
    seen = np.outer(down.sum(1), across.sum(1))
    inside = down @ mask.astype(float) @ across.T
    return np.divide(inside, seen, out=np.zeros_like(inside), where=seen > 0), seen


def _overlaps(
    pixels: int, image_px: int, start_px: float, length_px: float, cells: int
) -> np.ndarray:
    """Return [cells, pixels], the share of each cell that each pixel takes, along one side."""
    edges = (np.arange(pixels + 1) * (image_px / pixels) - start_px) * (cells / length_px)
    low = np.maximum(edges[:-1], np.arange(cells)[:, None])
    return np.maximum(np.minimum(edges[1:], np.arange(cells)[:, None] + 1) - low, 0.0)


def cell_hits(mask: np.ndarray, geometry: Geometry, rows: int, columns: int) -> np.ndarray:
    """Return whether the centre of each cell hits a mask: bool [rows, columns].

    It hits where it lies within TOLERANCE_PX of the middle of a pixel of the mask. The mask may
    have another size than the image: the tolerance is in pixels of the mask.
    """
    down = mask.shape[0] / geometry.photo_height_px
    across = mask.shape[1] / geometry.photo_width_px
    hits = np.zeros((rows, columns), bool)
    for row, column in np.ndindex(rows, columns):
        x0, y0, x1, y1 = geometry.cell_box_px(row, column, rows, columns)
        x, y = across * (x0 + x1) / 2, down * (y0 + y1) / 2
        # Only the surroundings of the point: images are large.
        left, top = (max(0, int(start - TOLERANCE_PX) - 1) for start in (x, y))
        right, bottom = (max(0, int(end + TOLERANCE_PX) + 2) for end in (x, y))
        ys, xs = np.nonzero(mask[top:bottom, left:right])
        distances = np.hypot(xs + left + 0.5 - x, ys + top + 0.5 - y)
        hits[row, column] = (distances <= TOLERANCE_PX).any()
    return hits


def summary(words: Sequence[GroundedWord]) -> dict[str, Any]:
    """Return means of the figures over words, their 95 % intervals, and means by category.

    The most frequent category comes first. Without words there is `num_words` alone.
    """
    if not words:
        return {"num_words": 0}
    by_category: dict[str, list[GroundedWord]] = {}
    by_image: dict[Hashable, list[GroundedWord]] = {}
    for word in words:
        by_category.setdefault(word.category, []).append(word)
        by_image.setdefault(word.image, []).append(word)
    ranked = sorted(by_category.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    names = words[0].figures

    def means(members: Sequence[GroundedWord]) -> dict[str, Any]:
        figures = {n: float(np.mean([word.figures[n] for word in members])) for n in names}
        return {"num_words": len(members), **figures}

    groups = by_image.values()
    intervals = {
        n: interval_of_mean([[w.figures[n] for w in group] for group in groups]) for n in names
    }
    by_name = {name: means(members) for name, members in ranked}
    return {**means(words), "intervals": intervals, "by_category": by_name}


# The word list of CHAIR (Rohrbach et al., 2018), data/synonyms.txt of
# github.com/LisaAnne/Hallucination: a line for each of COCO's 80 categories, its name first.
SYNONYMS = Path(__file__).with_name("coco_synonyms.txt")
# Plurals that no ending gives away.
IRREGULAR = dict(
    pair.split(":")
    for pair in "men:man women:woman policemen:policeman gentlemen:gentleman geese:goose "
    "mice:mouse grandchildren:grandchild persons:person".split()
)
# CHAIR's rules for two words that are read as one.
AGES = frozenset({"baby", "adult"})
ANIMALS = frozenset("bird cat dog horse sheep cow elephant bear zebra giraffe".split())
TOGETHER = {"passenger jet": "airplane", "passenger train": "train", "toilet seat": "toilet"}
# Things and places that are called after an object, which need not be there.
CALLED_AFTER = frozenset(
    "home plate, train station, train track, train yard, train platform, bus stop, bus station, "
    "toilet paper, ski slope, ski lift, ski resort, ski pole, book shelf, bird feeder, pizza box, "
    "bed room".split(", ")
)
# COCO's file names of 2014 and of 2017 end in the same number.
_COCO_NUMBER = re.compile(r"(?:.*_)?(\d{12})\.\w+")


@functools.cache
def category_names() -> dict[str, str]:
    """Return the category that each word, or pair of words, of CHAIR's list names."""
    lines = SYNONYMS.read_text(encoding="utf-8").lower().splitlines()
    entries = [[name.strip() for name in line.split(",")] for line in lines if line[:1] != "#"]
    return {name: names[0] for names in entries for name in names}


def category_of(words: str) -> str | None:
    """Return the category that a word, or two with a space between, names in either number.

    >>> category_of("puppies"), category_of("hot dogs"), category_of("glass")
    ('dog', 'hot dog', None)
    """
    names = category_names()
    return next((names[form] for form in _singulars(words) if form in names), None)


def _singulars(words: str) -> Iterator[str]:
    """Yield the words and what they may be the plural of."""
    yield words
    first, _, last = words.rpartition(" ")
    if last in IRREGULAR:
        yield f"{first} {IRREGULAR[last]}".strip()
    for plural, singular in ("ies", "y"), ("ves", "f"), ("ves", "fe"), ("es", ""), ("s", ""):
        if last.endswith(plural):
            yield words.removesuffix(plural) + singular


def named_categories(words: Sequence[str]) -> list[str | None]:
    """Return for each word of a caption the category that it names, or None.

    Where two words name one together, the second names it.

    >>> named_categories("a hot dog on a bus with a baby elephant".split())
    [None, None, 'hot dog', None, None, 'bus', None, None, None, 'elephant']
    """
    categories = [category_of(word) for word in words]
    for index, (word, following) in enumerate(itertools.pairwise(words)):
        pair = f"{word} {following}"
        if together := TOGETHER.get(pair) or category_of(pair):
            categories[index : index + 2] = [None, together]
        elif CALLED_AFTER.intersection(_singulars(pair)):
            categories[index : index + 2] = [None, None]
        elif word in AGES and categories[index + 1] in ANIMALS:
            categories[index] = None
    return categories


ImageKey: TypeAlias = "tuple[int, int]"  # number of the file, number of the image in it


class Objects:
    """The instances of one or more COCO annotation files, by the names of the images' files."""

    def __init__(self, *paths: Path) -> None:
        self._files = [_read_instances(path) for path in paths]
        self._by_name: dict[str, ImageKey] = {}
        for index, file in enumerate(self._files):
            for number, image in file.imgs.items():
                name = _without_year(Path(str(image.get("file_name", ""))).name)
                self._by_name.setdefault(name, (index, number))

    def image(self, path: ImagePath) -> ImageKey | None:
        """Return the key of an image, found by its name; COCO's two names are one image."""
        return self._by_name.get(_without_year(path.name))

    def mask(self, image: ImageKey, category: str) -> np.ndarray | None:
        """Return a category's outlines, or else boxes, as bool [height, width]; None without."""
        file, number = self._files[image[0]], image[1]
        categories = file.getCatIds(catNms=[category])
        size = file.imgs[number]
        mask = np.zeros((size["height"], size["width"]), bool)
        for annotation in file.imgToAnns.get(number, ()):
            if annotation["category_id"] not in categories:
                continue
            outlines = annotation.get("segmentation")
            if isinstance(outlines, list):
                # Of fewer than three corners, pycocotools takes a polygon for a box, or fails.
                outlines = [polygon for polygon in outlines if len(polygon) >= 6]
            if not outlines:
                x, y, width, height = annotation["bbox"]
                outlines = [[x, y, x + width, y, x + width, y + height, x, y + height]]
            mask |= file.annToMask(annotation | {"segmentation": outlines}).astype(bool)
        return mask if mask.any() else None


def _read_instances(path: Path) -> Any:
    from pycocotools.coco import COCO

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            coco = COCO(str(path))
        coco.getCatIds(catNms=[""])  # other annotations have no names of categories
    except (OSError, ValueError, LookupError, TypeError, AssertionError) as error:
        raise DataError(
            f"{path} is no file of COCO instances; name one such as instances_val2017.json"
        ) from error
    return coco


def _without_year(name: str) -> str:
    match = _COCO_NUMBER.fullmatch(name)
    return match[1] if match else name
