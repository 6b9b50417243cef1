"""COCO's captions as its archives have them, and Karpathy's splits of them by image name."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

from captioner.data.captioned import CaptionedImage, DataFiles, available_splits
from captioner.data.text_files import (
    matches_of_star,
    normalize_spaces,
    numbered_lines,
    quoted,
    read_json_object,
)
from captioner.errors import DataError

_SPLIT_LISTS = ("train", "val", "test", "restval")
_COCO_NAME = re.compile(r"(?:COCO_([a-z]+\d{4})_)?(\d{12})\.jpg")


def read(data: DataFiles, splits: Sequence[str]) -> list[CaptionedImage]:
    """Read annotations/captions_{split}.json next to the folder {split}, such as train2017.

    For a split whose captions are kept back, image_info_{split}.json is read. With `coco_splits`, a
    folder of coco_{train,val,test,restval}.txt, a split is one of these four lists of image names,
    looked up in all captions_*.json that lie next to their images; a COCO name of 2014 also finds
    the image under its name of 2017, by its number. Ids are COCO's own; an image that no captions
    file has is named by its file name.
    """
    data.refuse("file")
    if data.coco_splits is not None:
        return _read_lists(data, splits, Path(data.coco_splits))
    root = Path(data.root)
    images: dict[int | str, CaptionedImage] = {}
    for split in splits:
        path = root / "annotations" / f"captions_{split}.json"
        names_only = path.with_name(f"image_info_{split}.json")
        # Path.is_file raises for a name that no file can have
        if not os.path.isfile(path) and not os.path.isfile(names_only):
            raise DataError(f"there is no {path}; " + available_splits(_annotated_folders(root)))
        path = path if os.path.isfile(path) else names_only
        for image in _read_captions(path, root / split):
            if image.image_id in images:
                raise _same_id(image, images[image.image_id])
            images[image.image_id] = image
    return list(images.values())


def _read_captions(path: Path, folder: Path) -> list[CaptionedImage]:
    """Read a captions file whose images lie in `folder`."""
    data = read_json_object(path)
    images: dict[int | str, CaptionedImage] = {}
    captions: dict[int | str, list[str]] = {}
    for number, image in enumerate(_entries(path, data, "images"), start=1):
        image_id, name = image.get("id"), image.get("file_name")
        if not _is_id(image_id) or not isinstance(name, str) or not name:
            raise _malformed(path, "images", number, image, "id and file_name")
        if image_id in images:
            raise DataError(
                f"{path}, images, number {number}: image id {quoted(repr(image_id))} is that of "
                "another image too; number them apart"
            )
        images[image_id] = CaptionedImage(folder / name, (), image_id)
    # A file of image names alone, for a split without public captions, has no annotations.
    for number, annotation in enumerate(
        _entries(path, data, "annotations") if "annotations" in data else (), start=1
    ):
        image_id, text = annotation.get("image_id"), annotation.get("caption")
        if not _is_id(image_id) or not isinstance(text, str):
            raise _malformed(path, "annotations", number, annotation, "image_id and caption")
        captions.setdefault(image_id, []).append(normalize_spaces(text))
    return [
        replace(image, captions=tuple(captions.get(image_id, ())))
        for image_id, image in images.items()
    ]


def _entries(path: Path, data: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """Return the list `images` or `annotations` of a captions file, whose entries are objects."""
    entries = data.get(kind)
    if not isinstance(entries, list):
        raise DataError(f"{path} is not a COCO captions file: it has no list of {kind}")
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict):
            raise _malformed(path, kind, number, entry, "an object")
    return entries


def _is_id(value: object) -> TypeGuard[int | str]:
    return isinstance(value, (int, str)) and not isinstance(value, bool)


def _malformed(path: Path, kind: str, number: int, entry: object, expected: str) -> DataError:
    return DataError(
        f"{path} is not a COCO captions file: {kind}, number {number}: expected {expected}, not "
        f"{quoted(repr(entry))}"
    )


def _annotated_folders(root: Path) -> list[str]:
    return matches_of_star(root / "annotations", "captions_*.json")


def _read_lists(data: DataFiles, splits: Sequence[str], lists: Path) -> list[CaptionedImage]:
    """Read the images that coco_SPLIT.txt in the folder `lists` names."""
    root, existing = Path(data.root), data.existing
    wanted: dict[str, None] = {}  # an ordered set
    for split in splits:
        split_file = lists / f"coco_{split}.txt"
        if split not in _SPLIT_LISTS or not os.path.isfile(split_file):
            raise DataError(
                f"there is no list {split_file}; the splits by name are "
                f"{', '.join(_SPLIT_LISTS)}, one file coco_SPLIT.txt each"
            )
        wanted.update((name, None) for _, name in numbered_lines(split_file))
    folders = [folder for folder in _annotated_folders(root) if (root / folder).is_dir()]
    if not folders:
        raise DataError(
            f"{root} has no annotations/captions_NAME.json next to a folder NAME of images; "
            "correct the data root"
        )
    # An image may be there twice, under its names of 2014 and of 2017.
    by_name: dict[str, list[CaptionedImage]] = {}
    by_number: dict[str, list[CaptionedImage]] = {}
    for folder in folders:
        path = root / "annotations" / f"captions_{folder}.json"
        for image in _read_captions(path, root / folder):
            by_name.setdefault(image.path.name, []).append(image)
            if match := _COCO_NAME.fullmatch(image.path.name):
                by_number.setdefault(match[2], []).append(image)
    images: dict[int | str, CaptionedImage] = {}
    for name in wanted:
        match = _COCO_NAME.fullmatch(name)
        candidates = by_name.get(name, []) + (by_number.get(match[2], []) if match else [])
        if not candidates:  # in no captions file; this is where it would lie
            folder = match[1] or "" if match else ""
            candidates = [CaptionedImage(root / folder / name, (), name)]
            if candidates[0].path in existing:
                raise DataError(
                    f"{candidates[0].path} has no caption in any of {root}/annotations/"
                    f"captions_*.json; put captions_{folder or 'NAME'}.json there"
                )
        on_disk = (image for image in candidates if image.path in existing)
        image = next(on_disk, candidates[0])
        other = images.setdefault(image.image_id, image)
        if other.path != image.path:
            raise _same_id(image, other)
    return list(images.values())


def _same_id(image: CaptionedImage, other: CaptionedImage) -> DataError:
    return DataError(
        f"{image.path}: image id {image.image_id} is also that of {other.path}; number the images "
        "of different captions files apart, or take one split at a time"
    )
