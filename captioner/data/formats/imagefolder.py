"""Hugging Face's imagefolder: images with metadata.csv or metadata.jsonl."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from captioner.data.formats.table import read_tables
from captioner.data.layouts import Annotations, DataFiles, NamedImage
from captioner.data.splits import split_of_folder
from captioner.errors import listed

_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


class ImageFolder:
    """`metadata.csv`, `metadata.jsonl` or `metadata.parquet`, whose names begin at its folder.

    A folder called train, validation or test is a split: that of the metadata file, or that which
    the name of each image begins with.
    """

    def recognise(self, data: DataFiles) -> str | None:
        files = data.candidates(*_METADATA)
        names = listed([data.relative(path) for path in files], 3)
        return f"Hugging Face's imagefolder: {names}" if files else None

    def read(self, data: DataFiles) -> Annotations:
        images: list[NamedImage] = []
        for path in data.candidates(*_METADATA):
            folder = data.relative(path.parent)
            for image in read_tables(data, [(path, "")]).images:
                name = Path(folder, str(image.name)).as_posix()
                images.append(replace(image, name=name, image_id=len(images)))
        splits_of = [split_of_folder(str(image.name)) for image in images]
        if all(splits_of):
            images = [
                replace(i, split=i.split or split)
                for i, split in zip(images, splits_of, strict=True)
            ]
        return Annotations(images, [data.folder])
