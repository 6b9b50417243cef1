"""Flickr8k and Flickr30k: the original archives, and Kaggle's.

Image ids are positions in the captions file.
"""

from __future__ import annotations

from dataclasses import replace

from captioner.data.formats.table import read_tables
from captioner.data.layouts import Annotations, DataFiles, NamedImage
from captioner.data.splits import split_name
from captioner.data.text_files import numbered_lines, quoted
from captioner.errors import DataError


class Flickr8k:
    """`Flickr8k.token.txt` or Kaggle's `captions.txt`, with the split lists where there are any.

    Images lie in `images/`, `Images/`, `Flickr8k_Dataset/` or `Flicker8k_Dataset/`.
    """

    def recognise(self, data: DataFiles) -> str | None:
        for path in data.candidates("Flickr8k.token.txt"):
            return f"Flickr8k: {data.relative(path)}"
        for path in data.candidates("captions.txt"):
            heading = next((line for _, line in numbered_lines(path)), "")
            in_images = any(image.parent.name == "Images" for image in data.tree.images[:1])
            if heading.replace(" ", "").lower() == "image,caption" and in_images:
                return f"Kaggle's Flickr8k: {data.relative(path)}"
        return None

    def read(self, data: DataFiles) -> Annotations:
        found = data.candidates("Flickr8k.token.txt") or data.candidates("captions.txt")
        annotations = read_tables(data, [(found[0], "")])
        images, folders = annotations.images, [data.folder / "images", *annotations.folders]
        lists = [path for path in data.tree.others if path.match("Flickr_8k.*Images.txt")]
        if lists:
            by_name = {str(image.name): image for image in images}
            images = []
        for path in sorted(lists, key=lambda path: "train" not in path.name):
            split = split_name(path.name.removeprefix("Flickr_8k.").removesuffix("Images.txt"))
            for number, name in numbered_lines(path):
                if name not in by_name:
                    raise DataError(
                        f"{path}, line {number}: {quoted(name)} has no caption in {found[0]}; "
                        "each line must be the name of an image that has"
                    )
                images.append(replace(by_name[name], split=split))
        return Annotations(images, [*folders, data.folder])


class Flickr30k:
    """`results_20130124.token` or Kaggle's `results.csv`.

    Images lie in `flickr30k-images/` or `flickr30k_images/`, also twice nested.
    """

    def recognise(self, data: DataFiles) -> str | None:
        for path in data.candidates("results_*.token", "results.token"):
            return f"Flickr30k: {data.relative(path)}"
        for path in data.candidates("results.csv"):
            heading = next((line for _, line in numbered_lines(path)), "")
            if heading.replace(" ", "").startswith("image_name|comment_number|comment"):
                return f"Kaggle's Flickr30k: {data.relative(path)}"
        return None

    def read(self, data: DataFiles) -> Annotations:
        path = data.candidates("results_*.token", "results.token", "results.csv")[0]
        images: list[NamedImage] = read_tables(data, [(path, "")]).images
        return Annotations(images, [data.folder / "flickr30k-images", path.parent])
