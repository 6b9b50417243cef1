"""COCO's captions as its archives have them, and Karpathy's splits of them by image name."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from pathlib import Path

from captioner.data.captioned import CaptionedImage, Disk, splits_there
from captioner.data.text_files import numbered_lines, one_line, read_json_object, wildcards
from captioner.errors import DataError

_COCO_SPLIT_LISTS = ("train", "val", "test", "restval")
_COCO_NAME = re.compile(r"(?:COCO_([a-z]+\d{4})_)?(\d{12})\.jpg")


def coco_split(root: Path, names: Sequence[str]) -> list[CaptionedImage]:
    photos: dict[int | str, CaptionedImage] = {}
    for split in names:
        path = root / "annotations" / f"captions_{split}.json"
        names_only = path.with_name(f"image_info_{split}.json")
        if not path.is_file() and not names_only.is_file():
            raise DataError(f"there is no {path}; " + splits_there(_coco_annotated(root)))
        path = path if path.is_file() else names_only
        for photo in _coco_captions(path, root / split):
            if photo.image_id in photos:
                raise DataError(
                    f"{path}: image id {photo.image_id} is also that of "
                    f"{photos[photo.image_id].path} in another of the splits {'+'.join(names)}; "
                    "number their images apart, or take one split at a time"
                )
            photos[photo.image_id] = photo
    return list(photos.values())


def _coco_captions(path: Path, folder: Path) -> list[CaptionedImage]:
    from pycocotools.coco import COCO

    coco = COCO()
    coco.dataset = read_json_object(path)
    # Captions have no category, but some tools export the list, and the index would ask for them.
    coco.dataset.pop("categories", None)
    photos = []
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it reports its progress there
            coco.createIndex()
        for image_id, image in coco.imgs.items():
            annotations = coco.imgToAnns.get(image_id, ())
            texts = (one_line(annotation["caption"]) for annotation in annotations)
            captions = tuple(text for text in texts if text)
            photos.append(CaptionedImage(folder / image["file_name"], captions, image_id))
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is not a COCO captions file: expected images with id and file_name, and "
            f"annotations with id, image_id and caption ({type(error).__name__}: {error})"
        ) from error
    return photos


def _coco_annotated(root: Path) -> list[str]:
    return wildcards(root / "annotations", "captions_*.json")


def coco_split_by_name(
    root: Path, names: Sequence[str], coco_splits: Path, disk: Disk
) -> list[CaptionedImage]:
    wanted: dict[str, None] = {}  # an ordered set
    for split in names:
        split_file = coco_splits / f"coco_{split}.txt"
        if split not in _COCO_SPLIT_LISTS or not split_file.is_file():
            raise DataError(
                f"there is no list {split_file}; the splits by name are "
                f"{', '.join(_COCO_SPLIT_LISTS)}, one file coco_SPLIT.txt each"
            )
        wanted.update((name, None) for _, name in numbered_lines(split_file))
    folders = [folder for folder in _coco_annotated(root) if (root / folder).is_dir()]
    if not folders:
        raise DataError(
            f"{root} has no annotations/captions_NAME.json beside a folder NAME of images; "
            "correct the data root"
        )
    # An image may be there twice, under its names of 2014 and of 2017.
    by_name: dict[str, list[CaptionedImage]] = {}
    by_number: dict[str, list[CaptionedImage]] = {}
    for folder in folders:
        path = root / "annotations" / f"captions_{folder}.json"
        for photo in _coco_captions(path, root / folder):
            by_name.setdefault(photo.path.name, []).append(photo)
            if match := _COCO_NAME.fullmatch(photo.path.name):
                by_number.setdefault(match[2], []).append(photo)
    photos = []
    for name in wanted:
        match = _COCO_NAME.fullmatch(name)
        candidates = by_name.get(name, []) + (by_number.get(match[2], []) if match else [])
        if not candidates:  # in no captions file; this is where it would lie
            folder = match[1] or "" if match else ""
            candidates = [CaptionedImage(root / folder / name, (), name)]
            if candidates[0].path in disk:
                raise DataError(
                    f"{candidates[0].path} has no caption in any of {root}/annotations/"
                    f"captions_*.json; put captions_{folder or 'NAME'}.json there"
                )
        there = (photo for photo in candidates if photo.path in disk)
        photos.append(next(there, candidates[0]))
    return photos
