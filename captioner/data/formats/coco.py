"""COCO's captions as its archives have them, and Karpathy's splits of them by image name."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from captioner.data.layouts import Annotations, DataFiles, NamedImage
from captioner.data.splits import SPLIT_NAMES
from captioner.data.text_files import numbered_lines, quoted, read_json_object
from captioner.errors import DataError, listed

_SPLIT_LISTS = ("train", "val", "test", "restval")
_COCO_NAME = re.compile(r"(?:COCO_([a-z]+\d{4})_)?(\d{12})\.jpg")


class Coco:
    """`annotations/captions_*.json` next to the folders of the images, such as `train2017/`.

    A split is what the star stands for. For a split whose captions are kept back,
    `image_info_*.json` is read. With `coco_splits`, a folder of coco_{train,val,test,restval}.txt,
    a split is one of these four lists of image names, found in all captions files. Ids are
    COCO's own; an image that no captions file has is named by its file name.
    """

    def recognise(self, data: DataFiles) -> str | None:
        if file := _single_file(data):
            return f"COCO captions: {data.relative(file)}"
        if data.named_file is not None or not _captions_files(data):
            return None
        names = sorted(map(data.relative, _captions_files(data).values()))
        lists = f" with the split lists in {data.coco_splits}" if data.coco_splits else ""
        return f"COCO captions: {listed(names)}{lists}"

    def read(self, data: DataFiles) -> Annotations:
        if file := _single_file(data):
            images, problems = _read_captions(file)
            return Annotations(images, [data.folder, file.parent], problems)
        files = _captions_files(data)
        images, problems = [], []
        for split, path in files.items():
            found, sentences = _read_captions(path)
            problems += sentences
            for image in found:
                name = str(image.name) if "/" in str(image.name) else f"{split}/{image.name}"
                images.append(replace(image, name=name, split=split))
        if data.coco_splits is not None:
            images = _of_lists(images, Path(data.coco_splits))
        folder = next(iter(files.values())).parent
        return Annotations(
            images, [folder.parent if folder.name == "annotations" else folder], problems
        )


def _single_file(data: DataFiles) -> Path | None:
    """Return the file that the user names, or the only one in COCO's form under another name."""
    if data.named_file is not None:
        is_coco = data.format == "coco" or _holds_captions(data.named_file)
        return data.named_file if is_coco else None
    if _captions_files(data):
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
    files: dict[str, Path] = {}
    for prefix in ("captions_", "image_info_"):
        found = [path for path in data.tree.others if path.match(f"{prefix}*.json")]
        for path in sorted(found, key=lambda path: (len(path.parts), path)):
            if not path.stem.endswith("_results"):  # captions that a model wrote
                files.setdefault(path.stem.removeprefix(prefix), path)
    if files or data.named_file is not None:
        return files
    # Files called train.json and val.json, as VizWiz's.
    named_so = [path for path in data.candidates("*.json") if path.stem.lower() in SPLIT_NAMES]
    named_so = [path for path in named_so if _holds_captions(path)]
    return {path.stem: path for path in named_so} if len(named_so) > 1 else {}


def _read_captions(path: Path) -> tuple[list[NamedImage], list[str]]:
    """Return the images of a captions file, and sentences about what it holds in vain."""
    data = read_json_object(path)
    images: dict[int | str, NamedImage] = {}
    for number, image in enumerate(_entries(path, data, "images"), start=1):
        image_id, name = _id(image.get("id")), image.get("file_name")
        if image_id is None or not isinstance(name, str) or not name:
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
        image_id, text = _id(annotation.get("image_id")), annotation.get("caption", 0) or ""
        if image_id is None or "caption" not in annotation or not isinstance(text, str):
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
        kinds = ("texts", "numbers") if isinstance(other_type[0], str) else ("numbers", "texts")
        problems.append(
            f"{path}: {len(other_type)} of {len(annotations)} annotations name images by "
            f"{kinds[0]} such as {other_type[0]!r}, and the images' ids are {kinds[1]}; they are "
            "taken as equal, but COCO's own tools do not"
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


def _id(value: object) -> int | str | None:
    """Return an image's id; pandas writes whole numbers as floats."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else None


def _malformed(path: Path, kind: str, number: int, entry: object, expected: str) -> DataError:
    return DataError(
        f"{path} is not a COCO captions file: {kind}, number {number}: expected {expected}, not "
        f"{quoted(repr(entry))}"
    )


def _of_lists(images: list[NamedImage], lists: Path) -> list[NamedImage]:
    """Return the images that coco_{train,val,test,restval}.txt in the folder `lists` name.

    A COCO name of 2014 also finds the image under its name of 2017, by its number.
    """
    files = [path for split in _SPLIT_LISTS if (path := lists / f"coco_{split}.txt").exists()]
    if not files:
        raise DataError(f"there is no list coco_train.txt, coco_val.txt or such in {lists}")
    by_key: dict[int | str, NamedImage] = {}
    for image in images:
        by_key.setdefault(_key(Path(str(image.name)).name), image)
    found: dict[int | str, NamedImage] = {}
    for path in files:
        for _, name in numbered_lines(path):
            key, match = _key(name), _COCO_NAME.fullmatch(name)
            folder = match[1] or "" if match else ""
            # One that is in no captions file is named where it would lie.
            absent = NamedImage(f"{folder}/{name}".lstrip("/"), (), name)
            split = path.stem.removeprefix("coco_")
            found.setdefault(key, replace(by_key.get(key, absent), split=split))
    return list(found.values())


def _key(name: str) -> int | str:
    """Return the number in a COCO name, whatever its year, or else the name."""
    match = _COCO_NAME.fullmatch(name)
    return int(match[2]) if match else name
