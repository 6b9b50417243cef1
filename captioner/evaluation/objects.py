"""Objects of COCO images, their masks, and the words of captions that name them."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from captioner.data.images import ImagePath
from captioner.errors import DataError

# The word list of CHAIR (Rohrbach et al., 2018), data/synonyms.txt of
# github.com/LisaAnne/Hallucination: a line for each of COCO's 80 categories, its name first.
SYNONYMS = Path(__file__).with_name("coco_synonyms.txt")
# Plurals that no ending gives away.
IRREGULAR = dict(
    zip(
        "men women policemen gentlemen grandchildren geese mice persons".split(),
        "man woman policeman gentleman grandchild goose mouse person".split(),
        strict=True,
    )
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
    endings = ("ies", "y"), ("ves", "f"), ("ves", "fe"), ("es", ""), ("s", "")
    for plural, singular in endings:
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
                name = Path(str(image.get("file_name", ""))).name
                for key in {name, _number_in(name)} - {""}:
                    self._by_name.setdefault(key, (index, number))

    def image(self, path: ImagePath) -> ImageKey | None:
        """Return the key of an image, found by its name; COCO's two names are one image."""
        names = (path.name, _number_in(path.name))
        return next((self._by_name[name] for name in names if name in self._by_name), None)

    def mask(self, image: ImageKey, category: str) -> np.ndarray | None:
        """Return the outlines of an image's objects of a category, or else their boxes.

        bool [height, width], or None where there is none.
        """
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
    """Return pycocotools' index of a file."""
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


def _number_in(name: str) -> str:
    match = _COCO_NUMBER.fullmatch(name)
    return match[1] if match else ""
