"""Flickr8k as its archives have it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from captioner.data.captioned import CaptionedImage, DataFiles, available_splits
from captioner.data.text_files import (
    matches_of_star,
    normalize_spaces,
    numbered_lines,
    quoted,
)
from captioner.errors import DataError


def read(data: DataFiles, splits: Sequence[str]) -> list[CaptionedImage]:
    """Read images/, Flickr8k.token.txt and Flickr_8k.{train,dev,test}Images.txt; "val" is "dev".

    Ids are positions in the token file.
    """
    data.refuse("file", "coco_splits")
    root = Path(data.root)
    token_file = root / "Flickr8k.token.txt"
    captions: dict[str, list[str]] = {}
    for number, line in numbered_lines(token_file):
        label, tab, text = line.partition("\t")
        name, _, index = label.rpartition("#")
        if not (tab and name and index.isdigit()):
            raise DataError(
                f"{token_file}, line {number}: expected NAME#NUMBER, a tab and a caption, "
                f"not {quoted(line)}"
            )
        captions.setdefault(name, []).append(normalize_spaces(text))
    ids = {name: index for index, name in enumerate(captions)}
    images: dict[str, CaptionedImage] = {}
    for split in splits:
        split = "dev" if split == "val" else split
        split_file = root / f"Flickr_8k.{split}Images.txt"
        if not os.path.isfile(split_file):  # Path.is_file raises for a name that no file can have
            raise DataError(
                f"there is no {split_file}; "
                + available_splits(matches_of_star(root, "Flickr_8k.*Images.txt"))
            )
        for number, name in numbered_lines(split_file):
            if name not in captions:
                raise DataError(
                    f"{split_file}, line {number}: {quoted(name)} has no caption in {token_file}; "
                    "each line must be the name of an image that has"
                )
            images[name] = CaptionedImage(root / "images" / name, tuple(captions[name]), ids[name])
    return list(images.values())
