"""COCO's captions as its archives have them, and Karpathy's splits of them by image name."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

from captioner.data.image_finder import ExistingFiles
from captioner.data.layouts import SPLIT_NAMES, Annotations, DataFiles, NamedImage, split_name
from captioner.data.text_files import numbered_lines, quoted, read_json_object
from captioner.errors import DataError, listed

_SPLIT_LISTS = ("train", "val", "test", "restval")
_COCO_NAME = re.compile(r"(?:COCO_([a-z]+\d{4})_)?(\d{12})\.jpg")


class Coco:
    """`annotations/captions_*.json` next to the folders of the images, such as `train2017/`.

    A split is what the star stands for; `train` is `train2017` or `train2014`, if only one of them
    is there. For a split whose captions are kept back, `image_info_*.json` is read. With
    `coco_splits`, a folder of coco_{train,val,test,restval}.txt, a split is one of these four lists
    of image names, looked up in all captions files. Ids are COCO's own; an image that no captions
    file has is named by its file name.
    """

    def recognise(self, data: DataFiles) -> str | None:
        if file := _single_file(data):
            return f"COCO captions: {data.relative(file)}"
        if data.named_file is not None:
            return None
        names = sorted(map(data.relative, _captions_files(data).values()))
        if not names and not _image_lists(data):
            return None
        lists = f" with the split lists in {data.coco_splits}" if data.coco_splits else ""
        return f"COCO captions: {listed(names) or 'no captions_*.json'}{lists}"

    def read(self, data: DataFiles, splits: Sequence[str]) -> Annotations:
        if file := _single_file(data):
            images, problems = _read_captions(file)
            return Annotations(images, [data.folder, file.parent], problems)
        if data.coco_splits is not None:
            return _read_lists(data, splits or _SPLIT_LISTS, Path(data.coco_splits))
        files = _captions_files(data)
        chosen = {name: _file_of_split(data, name) for name in splits} or files
        images = []
        problems = []
        ids: dict[int | str, NamedImage] = {}
        for split, path in chosen.items():
            found, sentences = _read_captions(path)
            problems += sentences
            for image in found:
                image = replace(image, name=_in_folder(path, str(image.name)), split=split)
                if image.image_id in ids:
                    raise _same_id(image, ids[image.image_id])
                ids[image.image_id] = image
                images.append(image)
        return Annotations(images, [_image_root(data)], problems)


def _single_file(data: DataFiles) -> Path | None:
    """Return the file that the user names, or the only one in COCO's form under another name."""
    if data.named_file is not None:
        is_coco = data.format == "coco" or _holds_captions(data.named_file)
        return data.named_file if is_coco else None
    if _captions_files(data) or _image_lists(data):
        return None
    found = [path for path in data.candidates("*.json") if _holds_captions(path)]
    return found[0] if len(found) == 1 else None


def _holds_captions(path: Path) -> bool:
    """Return whether a file looks like COCO's captions: images, annotations and captions."""
    if path.suffix.lower() != ".json":
        return False
    if path.match("captions_*.json"):
        return True
    text = path.read_bytes()
    words = (b'"images"', b'"file_name"', b'"annotations"', b'"image_id"', b'"caption"')
    return all(word in text for word in words)


def _captions_files(data: DataFiles) -> dict[str, Path]:
    """Return the captions files by what the star of captions_*.json stands for."""
    found = [path for path in data.tree.others if path.match("captions_*.json")]
    files = {
        path.stem.removeprefix("captions_"): path
        for path in sorted(found, key=lambda path: (-len(path.parts), path))
        if not path.stem.endswith("_results")  # captions that a model wrote
    }
    if files or data.named_file is not None:
        return files
    # Files called train.json and val.json, as VizWiz's.
    named_so = [path for path in data.candidates("*.json") if path.stem.lower() in SPLIT_NAMES]
    named_so = [path for path in named_so if _holds_captions(path)]
    return {path.stem: path for path in named_so} if len(named_so) > 1 else {}


def _image_lists(data: DataFiles) -> dict[str, Path]:
    """Return files of image names alone, for splits without public captions."""
    found = [path for path in data.tree.others if path.match("image_info_*.json")]
    return {path.stem.removeprefix("image_info_"): path for path in reversed(found)}


def _image_root(data: DataFiles) -> Path:
    """Return the folder that holds annotations/."""
    files = [*_captions_files(data).values(), *_image_lists(data).values()]
    folder = files[0].parent
    return folder.parent if folder.name == "annotations" else folder


def _in_folder(path: Path, name: str) -> str:
    """Return an image's name with the folder of its captions file, if it has none yet."""
    folder = path.stem.removeprefix("captions_").removeprefix("image_info_")
    return name if "/" in name else f"{folder}/{name}"


def _file_of_split(data: DataFiles, split: str) -> Path:
    """Return the captions file of a split, of which the year may be left out."""
    files = _image_lists(data) | _captions_files(data)
    if split in files:
        return files[split]
    of_years = [
        name for name in _captions_files(data) if re.sub(r"\d{4}$", "", name) == split_name(split)
    ]
    if len(of_years) == 1:
        return files[of_years[0]]
    if of_years:
        raise DataError(
            f"{data.root} has {' and '.join(sorted(of_years))}; choose one as the split, with "
            "--split (data.train_split and data.val_split in a recipe)"
        )
    raise DataError(
        f"there is no {_image_root(data) / 'annotations' / f'captions_{split}.json'}; the splits "
        f"there are: {', '.join(sorted(_captions_files(data))) or 'none'}"
    )


def _read_captions(path: Path) -> tuple[list[NamedImage], list[str]]:
    """Return the images of a captions file, and sentences about what it holds in vain."""
    data = read_json_object(path)
    images: dict[int | str, NamedImage] = {}
    for number, image in enumerate(_entries(path, data, "images"), start=1):
        image_id, name = image.get("id"), image.get("file_name")
        if not _is_id(image_id) or not isinstance(name, str) or not name:
            raise _malformed(path, "images", number, image, "id and file_name")
        if image_id in images:
            raise DataError(
                f"{path}, images, number {number}: image id {quoted(repr(image_id))} is that of "
                "another image too; number them apart"
            )
        images[image_id] = NamedImage(name, (), image_id)
    by_text = {str(image_id): image_id for image_id in images}
    captions: dict[int | str, list[str]] = {}
    strangers: list[int | str] = []
    other_type: list[int | str] = []
    # A file of image names alone, for a split without public captions, has no annotations.
    annotations = _entries(path, data, "annotations") if "annotations" in data else []
    for number, annotation in enumerate(annotations, start=1):
        image_id, text = annotation.get("image_id"), annotation.get("caption")
        if text is None and "caption" in annotation:
            text = ""
        if not _is_id(image_id) or not isinstance(text, str):
            raise _malformed(path, "annotations", number, annotation, "image_id and caption")
        if image_id not in images:
            if str(image_id) not in by_text:
                strangers.append(image_id)
                continue
            other_type.append(image_id)
            image_id = by_text[str(image_id)]
        captions.setdefault(image_id, []).append(text)
    problems = []
    if strangers:
        problems.append(
            f"{path}: {len(strangers)} of {len(annotations)} annotations name no image of the "
            f"file, the first image_id is {strangers[0]!r}; they are left out"
        )
    if other_type:
        problems.append(
            f"{path}: {len(other_type)} of {len(annotations)} annotations name images by "
            f"{'texts' if isinstance(other_type[0], str) else 'numbers'} such as "
            f"{other_type[0]!r}, and the images' ids are "
            f"{'numbers' if isinstance(other_type[0], str) else 'texts'}; they are taken as equal, "
            "but COCO's own tools do not"
        )
    return [replace(i, captions=tuple(captions.get(i.image_id, ()))) for i in images.values()], (
        problems
    )


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


def _read_lists(data: DataFiles, splits: Sequence[str], lists: Path) -> Annotations:
    """Return the images that coco_SPLIT.txt in the folder `lists` names.

    A COCO name of 2014 also finds the image under its name of 2017, by its number.
    """
    split_of: dict[str, str] = {}
    for split in splits:
        split_file = lists / f"coco_{split}.txt"
        if split not in _SPLIT_LISTS or not os.path.isfile(split_file):
            raise DataError(
                f"there is no list {split_file}; the splits by name are "
                f"{', '.join(_SPLIT_LISTS)}, one file coco_SPLIT.txt each"
            )
        split_of.update((name, split) for _, name in numbered_lines(split_file))
    root, existing = _image_root(data), ExistingFiles()
    # An image may be there twice, under its names of 2014 and of 2017.
    by_name: dict[str, list[NamedImage]] = {}
    by_number: dict[str, list[NamedImage]] = {}
    problems = []
    for path in _captions_files(data).values():
        found, sentences = _read_captions(path)
        problems += sentences
        for image in found:
            image = replace(image, name=_in_folder(path, str(image.name)))
            name = os.path.basename(str(image.name))
            by_name.setdefault(name, []).append(image)
            if match := _COCO_NAME.fullmatch(name):
                by_number.setdefault(match[2], []).append(image)
    images: dict[int | str, NamedImage] = {}
    for name, split in split_of.items():
        match = _COCO_NAME.fullmatch(name)
        candidates = by_name.get(name, []) + (by_number.get(match[2], []) if match else [])
        if not candidates:  # in no captions file; this is where it would lie
            folder = match[1] or "" if match else ""
            candidates = [NamedImage(f"{folder}/{name}".lstrip("/"), (), name)]
            if root / str(candidates[0].name) in existing:
                raise DataError(
                    f"{root / str(candidates[0].name)} has no caption in any of {root}/annotations/"
                    f"captions_*.json; put captions_{folder or 'NAME'}.json there"
                )
        on_disk = (image for image in candidates if root / str(image.name) in existing)
        image = replace(next(on_disk, candidates[0]), split=split)
        other = images.setdefault(image.image_id, image)
        if other.name != image.name:
            raise _same_id(image, other)
    return Annotations(list(images.values()), [root], problems)


def _same_id(image: NamedImage, other: NamedImage) -> DataError:
    return DataError(
        f"{image.name}: image id {image.image_id} is also that of {other.name}; number the images "
        "of different captions files apart, or take one split at a time"
    )
