"""The files of pictures: their names, and the contents of PNG and JPEG files."""

from __future__ import annotations

import base64
import io
import os
import struct
import unicodedata
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def output_names(images: Sequence[str | Path], *, with_suffix: bool = False) -> list[str]:
    """Return one NAME for each image of a run, under which its pictures are saved in one folder.

    NAME is the image's file name without its suffix. Images that would share a NAME, upper and
    lower case alike, keep their suffix; where that is not enough, their folders come in front.
    With `with_suffix` every NAME keeps its suffix.

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
            names |= {path: f"{n}-{names[path]}" for n, path in enumerate(sorted(shared), 2)}
            return [names[path] for path in paths]
        for path in grown:
            parts[path] += 1


def _name(path: Path, level: int) -> str:
    """Return the stem of a path (level 0), or its last `level` parts joined by hyphens."""
    if level == 0:
        return path.stem
    return "-".join(filter(None, (part.strip("/\\:") for part in path.parts[-level:])))


def word_names(name: str, words: Sequence[str]) -> list[str]:
    """Return the file names of the pictures of words: NAME.01-word.png, ..., in reading order.

    Of a word, at most 32 letters, digits and hyphens are kept; what is left empty becomes `word`.

    >>> word_names("photo", ["a", "l'été", "../.."])
    ['photo.01-a.png', 'photo.02-l-été.png', 'photo.03-word.png']
    """
    names = []
    for number, word in enumerate(words, start=1):
        kept = "".join(c if c.isalnum() else " " for c in unicodedata.normalize("NFC", word))
        kept = "-".join(kept.split())[:32].rstrip("-") or "word"
        names.append(f"{name}.{number:02d}-{kept}.png")
    return names


def png(image: Image.Image) -> bytes:
    """Return the bytes of an RGB image as PNG, in two thirds of the time that Pillow takes.

    Pillow tries five filters for every line. Here it is always the difference to the line above.
    """
    pixels = np.asarray(image.convert("RGB")).reshape(image.height, 3 * image.width)
    lines = np.empty((image.height, 1 + pixels.shape[1]), dtype=np.uint8)
    lines[:, 0] = 2  # the filter "up"
    lines[0, 1:] = pixels[0]
    np.subtract(pixels[1:], pixels[:-1], out=lines[1:, 1:])
    parts = [b"\x89PNG\r\n\x1a\n"]
    for kind, data in (
        (b"IHDR", struct.pack(">IIBBBBB", *image.size, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines.data, 1)),
        (b"IEND", b""),
    ):
        checksum = zlib.crc32(data, zlib.crc32(kind))
        parts += [struct.pack(">I", len(data)), kind, data, struct.pack(">I", checksum)]
    return b"".join(parts)


def data_url(image: Image.Image) -> str:
    """Return an image as a data URL of a JPEG."""
    file = io.BytesIO()
    image.save(file, format="JPEG", quality=88, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
