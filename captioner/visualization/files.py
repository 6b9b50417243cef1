"""Names of the pictures, and writing them."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from captioner.files import save, save_bytes
from captioner.visualization.arrays import png

_LONGEST_WORD = 32  # characters of a word that go into a file name
_PICTURE = re.compile(
    r"(?P<name>.+)\.(?:(?:attention|comparison|matrix|\d{2,}-[^.]+)\.png|attention\.gif)",
    re.DOTALL,
)


def save_png(image: Image.Image, path: str | Path) -> None:
    """Write an image as PNG; as `captioner.files.save`."""
    save_bytes(png(image), path)


def save_npz(arrays: Mapping[str, Any], path: str | Path) -> None:
    """Write named arrays as a compressed .npz; as `captioner.files.save`."""
    save(path, lambda file: np.savez_compressed(file, **arrays))


def output_names(images: Sequence[str | Path], *, with_suffix: bool = False) -> list[str]:
    """Return one NAME for each image of a run, under which its pictures are saved in one folder.

    NAME is the image's file name without its suffix. Where images would share a NAME, or names
    that differ only in case, which some file systems do not tell apart, each of them keeps its
    suffix; where that is not enough, the folders that hold it come in front. So no image of a run
    overwrites another's pictures, and a name does not depend on the order of the images. The same
    image given twice has one NAME. With `with_suffix` every NAME keeps its suffix.

    >>> output_names(["dog.jpg", "in/cat.jpg", "in/cat.png", "out/cat.png"])
    ['dog', 'cat.jpg', 'in-cat.png', 'out-cat.png']
    >>> output_names(["about.html", "a/index.html", "b/index.html"], with_suffix=True)
    ['about.html', 'a-index.html', 'b-index.html']
    """
    paths = [Path(os.path.abspath(image)) for image in images]
    detail = dict.fromkeys(paths, int(with_suffix))
    while True:
        names = {path: _name(path, level) for path, level in detail.items()}
        uses = Counter(name.casefold() for name in names.values())
        shared = [path for path, name in names.items() if uses[name.casefold()] > 1]
        grown = [path for path in shared if detail[path] < len(path.parts)]
        if not grown:
            break
        for path in grown:
            detail[path] += 1
    # Full paths can still meet, as a-b/c and a/b-c do: number those, in order of their paths. The
    # number comes in front, so that a name ends as its file does.
    for path in sorted(shared):
        number = 2
        while f"{number}-{names[path]}".casefold() in uses:
            number += 1
        names[path] = f"{number}-{names[path]}"
        uses[names[path].casefold()] += 1
    return [names[path] for path in paths]


def _name(path: Path, level: int) -> str:
    """Return the stem of a path (level 0), or its last `level` parts joined by hyphens."""
    if level == 0:
        return path.stem
    parts = (part.strip("/\\:") for part in path.parts[-level:])
    return "-".join(part for part in parts if part)


def picture_name(name: str, content: str = "attention", kind: str = "png") -> str:
    """Return the file name of a sheet, animation, page, maps, comparison or matrix.

    >>> picture_name("dog"), picture_name("dog", "matrix", "pdf")
    ('dog.attention.png', 'dog.matrix.pdf')
    """
    return f"{name}.{content}.{kind}"


def word_names(name: str, words: Sequence[str]) -> list[str]:
    """Return the file names of the pictures of words: NAME.01-word.png, ..., in reading order.

    Of a word, letters, digits and hyphens are kept, at most 32 of them; what is left empty
    becomes `word`. The number makes every name different.

    >>> word_names("photo", ["a", "l'été", "../.."])
    ['photo.01-a.png', 'photo.02-l-été.png', 'photo.03-word.png']
    """
    digits = max(2, len(str(len(words))))
    return [
        f"{name}.{number:0{digits}d}-{_in_a_file_name(word)}.png"
        for number, word in enumerate(words, start=1)
    ]


def is_picture_of(file: str, images: Container[str]) -> bool:
    """Return whether a file has the name of a picture that was drawn of one of these images.

    Args:
        images: Their file names, each with its suffix and without.

    >>> is_picture_of("dog.attention.png", {"dog", "dog.jpg"})
    True
    >>> is_picture_of("2024.05-paris.png", {"dog", "dog.jpg"})
    False
    """
    match = _PICTURE.fullmatch(file)
    if match is None:
        return False
    name = match["name"]
    # output_names puts folders, each with a hyphen behind it, in front where it must.
    starts = [0, *(hyphen.end() for hyphen in re.finditer("-", name))]
    return any(name[start:] in images for start in starts)


def _in_a_file_name(word: str) -> str:
    """Return the part of a word that goes into a file name."""
    kept = "".join(c if c.isalnum() else "-" for c in unicodedata.normalize("NFC", word))
    kept = "-".join(part for part in kept.split("-") if part)
    return kept[:_LONGEST_WORD].rstrip("-") or "word"
