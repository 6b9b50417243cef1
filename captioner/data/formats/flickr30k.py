"""Flickr30k: the original captions file, and Kaggle's."""

from __future__ import annotations

import re

from captioner.data.layouts import Annotations, DataFiles, NamedImage
from captioner.data.text_files import numbered_lines, quoted
from captioner.errors import DataError

# NAME.jpg#0<tab>caption, and Kaggle's NAME.jpg| 0| caption, which lacks the second | in one row
_ROW = re.compile(r"([^|#\t]+?)\s*(?:#\s*\d+\s*\t|\|\s*\d+\s*(?:\||\s))\s*(.*)")
_HEADING = re.compile(r"image_name\s*\|\s*comment_number\s*\|\s*comment")


class Flickr30k:
    """`results_20130124.token` or Kaggle's `results.csv`.

    Images lie in `flickr30k-images/` or `flickr30k_images/`, also twice nested. Ids are positions
    in the captions file.
    """

    def recognise(self, data: DataFiles) -> str | None:
        if token_files := data.candidates("results_*.token", "results.token"):
            return f"Flickr30k: {data.relative(token_files[0])}"
        for path in data.candidates("results.csv"):
            if _HEADING.match(next((line for _, line in numbered_lines(path)), "")):
                return f"Kaggle's Flickr30k: {data.relative(path)}"
        return None

    def read(self, data: DataFiles) -> Annotations:
        path = data.candidates("results_*.token", "results.token", "results.csv")[0]
        captions: dict[str, list[str]] = {}
        for number, line in numbered_lines(path):
            if number == 1 and _HEADING.match(line):
                continue
            row = _ROW.fullmatch(line)
            if row is None:
                raise DataError(
                    f"{path}, line {number}: expected a name, a number and a caption, not "
                    f"{quoted(line)}"
                )
            captions.setdefault(row[1], []).append(row[2])
        images = [
            NamedImage(name, tuple(texts), index)
            for index, (name, texts) in enumerate(captions.items())
        ]
        return Annotations(images, [data.folder / "flickr30k-images", path.parent])
