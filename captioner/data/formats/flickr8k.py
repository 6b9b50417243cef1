"""Flickr8k: the original archives, and Kaggle's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from captioner.data.formats.table import read_tables
from captioner.data.layouts import Annotations, DataFiles, NamedImage
from captioner.data.splits import split_name
from captioner.data.text_files import numbered_lines, quoted
from captioner.errors import DataError


class Flickr8k:
    """`Flickr8k.token.txt` or Kaggle's `captions.txt`, with the split lists where there are any.

    Images lie in `images/`, `Images/`, `Flickr8k_Dataset/` or `Flicker8k_Dataset/`. Ids are
    positions in the captions file.
    """

    def recognise(self, data: DataFiles) -> str | None:
        if token_files := data.candidates("Flickr8k.token.txt"):
            return f"Flickr8k: {data.relative(token_files[0])}"
        for path in data.candidates("captions.txt"):
            if _is_kaggles(path, data):
                return f"Kaggle's Flickr8k: {data.relative(path)}"
        return None

    def read(self, data: DataFiles) -> Annotations:
        found = data.candidates("Flickr8k.token.txt") or data.candidates("captions.txt")
        annotations = read_tables(data, [(found[0], "")])
        folders = [data.folder / "images", *annotations.folders, data.folder]
        lists = {
            split_name(path.name.removeprefix("Flickr_8k.").removesuffix("Images.txt")): path
            for path in data.tree.others
            if path.match("Flickr_8k.*Images.txt")
        }
        if not lists:
            return Annotations(annotations.images, folders)
        by_name = {str(image.name): image for image in annotations.images}
        images: list[NamedImage] = []
        for split, path in sorted(lists.items(), key=lambda item: item[0] != "train"):
            for number, name in numbered_lines(path):
                if name not in by_name:
                    raise DataError(
                        f"{path}, line {number}: {quoted(name)} has no caption in {found[0]}; "
                        "each line must be the name of an image that has"
                    )
                images.append(replace(by_name[name], split=split))
        return Annotations(images, folders)


def _is_kaggles(path: Path, data: DataFiles) -> bool:
    """Return whether a captions.txt is a table of images in Images/."""
    first = next((line for _, line in numbered_lines(path)), "")
    return first.replace(" ", "").lower() == "image,caption" and any(
        image.parent.name == "Images" for image in data.tree.images[:1]
    )
