"""Names of the pictures, and writing them."""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from captioner.files import save_bytes
from captioner.visualization.arrays import png

_LONGEST_WORD = 32  # characters of a word that go into a file name
# Of names that no photo has.
PICTURE_ENDINGS = (".attention.png", ".attention.gif", ".comparison.png", ".matrix.png")


def save_png(image: Image.Image, path: str | Path) -> None:
    """Write an image as PNG; as `captioner.files.save`."""
    save_bytes(png(image), path)


def output_names(images: Sequence[str | Path], *, with_suffix: bool = False) -> list[str]:
    """Return one NAME for each image of a run, under which its pictures are saved in one folder.

    NAME is the image's file name without its suffix. Where images would share a NAME, or names
    that differ only in case, which some file systems do not tell apart, each of them keeps its
    suffix; where that is not enough, the folders that hold it come in front. The same image given
    twice has one NAME. With `with_suffix` every NAME keeps its suffix.

    >>> output_names(["dog.jpg", "in/cat.jpg", "in/cat.png", "out/cat.png"])
    ['dog', 'cat.jpg', 'in-cat.png', 'out-cat.png']
    >>> output_names(["about.html", "a/index.html", "b/index.html"], with_suffix=True)
    ['about.html', 'a-index.html', 'b-index.html']
    """
    paths = [Path(os.path.abspath(image)) for image in images]
    parts = dict.fromkeys(paths, int(with_suffix))
    while True:
        names = {path: _name(path, count) for path, count in parts.items()}
        uses = Counter(name.casefold() for name in names.values())
        shared = [path for path, name in names.items() if uses[name.casefold()] > 1]
        grown = [path for path in shared if parts[path] < len(path.parts)]
        if not grown:
            # Full paths can still meet, as a-b/c and a/b-c do.
            numbered = {path: f"{n}-{names[path]}" for n, path in enumerate(sorted(shared), 2)}
            return [numbered.get(path, names[path]) for path in paths]
        for path in grown:
            parts[path] += 1


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


def _in_a_file_name(word: str) -> str:
    """Return the part of a word that goes into a file name."""
    kept = "".join(c if c.isalnum() else "-" for c in unicodedata.normalize("NFC", word))
    kept = "-".join(part for part in kept.split("-") if part)
    return kept[:_LONGEST_WORD].rstrip("-") or "word"
