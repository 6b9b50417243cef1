"""Flickr8k and Flickr30k: the original archives, and Kaggle's; ids are positions of the images."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from captioner.data.formats.table import columns_of, read_tables
from captioner.data.layouts import Annotations, DataFiles, NamedImage, Recognised
from captioner.data.records import numbered_lines


def flickr8k(data: DataFiles) -> Recognised | None:
    """Find `Flickr8k.token.txt` or Kaggle's `captions.txt`."""
    for path in data.candidates("Flickr8k.token.txt"):
        return Recognised(f"Flickr8k: {data.relative(path)}", partial(_flickr8k, data, path))
    for path in data.candidates("captions.txt"):
        in_images = any(image.parent.name == "Images" for image in data.images[:1])
        if columns_of(path) == ["image", "caption"] and in_images:
            title = f"Kaggle's Flickr8k: {data.relative(path)}"
            return Recognised(title, partial(_flickr8k, data, path))
    return None


def flickr30k(data: DataFiles) -> Recognised | None:
    """Find `results_20130124.token` or Kaggle's `results.csv`."""

    def read() -> Annotations:
        images = read_tables(data, [(path, "")]).images
        return Annotations(images, [data.folder / "flickr30k-images", path.parent])

    for path in data.candidates("results_*.token", "results.token"):
        return Recognised(f"Flickr30k: {data.relative(path)}", read)
    for path in data.candidates("results.csv"):
        if columns_of(path) == ["image_name", "comment_number", "comment"]:
            return Recognised(f"Kaggle's Flickr30k: {data.relative(path)}", read)
    return None


def _flickr8k(data: DataFiles, captions: Path) -> Annotations:
    """Read the captions, of the images in the split lists where there are any."""
    annotations = read_tables(data, [(captions, "")])
    by_name = {str(image.name): image for image in annotations.images}
    images: list[NamedImage] = []
    lists = [path for path in data.others if path.match("Flickr_8k.*Images.txt")]
    for path in sorted(lists, key=lambda path: "train" not in path.name):
        split = path.name.removeprefix("Flickr_8k.").removesuffix("Images.txt")
        for _, name in numbered_lines(path):
            images.append(replace(by_name.get(name, NamedImage(name, (), name)), split=split))
    folders = [data.folder / "images", *annotations.folders, data.folder]
    return Annotations(images or annotations.images, folders)
