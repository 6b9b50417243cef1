"""COCO's captions as its archives have them, and Karpathy's splits and JSON files."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from captioner.data.layouts import Annotations, DataFiles, NamedImage, Recognised
from captioner.data.records import numbered_lines, read_json
from captioner.data.splits import SPLIT_NAMES
from captioner.errors import DataError, listed

_COCO_NAME = re.compile(r"(?:COCO_([a-z]+\d{4})_)?(\d{12})\.jpg")


def coco(data: DataFiles) -> Recognised | None:
    """Find `annotations/captions_*.json` next to the folders of the images, such as `train2017/`.

    A split is what the star stands for, also in `image_info_*.json` without captions. With
    `coco_splits`, a folder of coco_{train,val,test,restval}.txt, it is one of these lists of names.
    """
    files = _captions_files(data)
    lists = f" with the split lists in {data.coco_splits}" if data.coco_splits else ""
    title = f"COCO captions: {listed(sorted(map(data.relative, files.values())))}{lists}"
    return Recognised(title, lambda: _read(data, files)) if files else None


def _read(data: DataFiles, files: dict[str, Path]) -> Annotations:
    images, problems = [], []
    for split, path in files.items():
        found, sentences = _read_captions(path)
        problems += sentences
        for image in found:
            name = image.name if "" in files or "/" in str(image.name) else f"{split}/{image.name}"
            images.append(replace(image, name=name, split=split))
    folder = next(iter(files.values())).parent
    if "" in files:  # a single file under another name
        return Annotations(images, [data.folder, folder], problems)
    if data.coco_splits is not None:
        images = _of_lists(images, Path(data.coco_splits))
    usual = folder.parent if folder.name == "annotations" else folder
    return Annotations(images, [usual], problems)


def _captions_files(data: DataFiles) -> dict[str, Path]:
    """Return the captions files by their splits; one of another name has the split ""."""
    files: dict[str, Path] = {}
    for prefix in ("captions_", "image_info_"):
        for path in data.candidates(f"{prefix}*.json"):
            if not path.stem.endswith("_results"):  # captions that a model wrote
                files.setdefault(path.stem.removeprefix(prefix), path)
    if files and data.named_file is None:
        return files
    keys = ("images", "file_name", "annotations", "image_id", "caption")
    found = list(files.values()) or data.json_files(*keys)
    if len(found) == 1:
        return {"": found[0]}
    # Files called train.json and val.json, as VizWiz's, or mine-train.json; each split once.
    names = [re.split("[_.-]", path.stem.lower())[-1] for path in found]
    of_splits = [(n, path) for n, path in zip(names, found, strict=True) if n in SPLIT_NAMES]
    return dict(of_splits) if len(of_splits) == len(dict(of_splits)) > 1 else {}


def _read_captions(path: Path) -> tuple[list[NamedImage], list[str]]:
    """Return the images of a captions file, and sentences about what it holds in vain."""
    content = read_json(path)
    try:
        # An image may come twice.
        images = dict.fromkeys((_id(i["id"]), str(i["file_name"])) for i in content["images"])
        # A file of image names alone, for a split without public captions, has no annotations.
        annotations = content.get("annotations", [])
        texts = [(_id(each["image_id"]), str(each["caption"] or "")) for each in annotations]
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{path} is not a COCO captions file: expected images with id and file_name, and "
            f"annotations with image_id and caption ({type(error).__name__}: {error})"
        ) from None
    captions: dict[str, list[str]] = {str(image_id): [] for image_id, _ in images}
    for image_id, text in texts:
        captions.get(str(image_id), []).append(text)
    strangers = [image_id for image_id, _ in texts if str(image_id) not in captions]
    problems = []
    if strangers:
        problems.append(
            f"{path}: {len(strangers)} of {len(texts)} annotations name no image of the file, the "
            f"first image_id is {strangers[0]!r}; they are left out"
        )
    return [NamedImage(name, tuple(captions[str(i)]), i) for i, name in images], problems


def _id(value: Any) -> Any:
    """Return an id, a number or text; pandas writes 1.0 for 1."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _of_lists(images: list[NamedImage], lists: Path) -> list[NamedImage]:
    """Return the images that the lists in a folder name; COCO's by number, whatever the year."""
    files = {
        split: path
        for split in ("train", "val", "test", "restval")
        if (path := lists / f"coco_{split}.txt").exists()
    }
    if not files:
        raise DataError(f"there is no list coco_train.txt, coco_val.txt or such in {lists}")

    def key(name: str) -> int | str:
        match = _COCO_NAME.fullmatch(name)
        return int(match[2]) if match else name

    by_key: dict[int | str, NamedImage] = {}
    for image in images:
        by_key.setdefault(key(Path(str(image.name)).name), image)
    found: dict[int | str, NamedImage] = {}
    for split, path in files.items():
        for _, name in numbered_lines(path):
            match = _COCO_NAME.fullmatch(name)  # one without captions would lie in train2014/
            place = f"{match[1]}/{name}" if match and match[1] else name
            image = by_key.get(key(name), NamedImage(place, (), name))
            found.setdefault(key(name), replace(image, split=split))
    return list(found.values())


def karpathy(data: DataFiles) -> Recognised | None:
    """Find `dataset_*.json` next to the folders of the images that it names.

    Ids are cocoids if all images have one, else positions in the file.
    """
    files = data.candidates("dataset_*.json") or data.json_files("sentences", "filename")
    title = f"Karpathy's JSON: {listed(map(data.relative, files))}"
    return Recognised(title, lambda: _read_karpathy(data, files)) if files else None


def _read_karpathy(data: DataFiles, files: list[Path]) -> Annotations:
    path, *others = files
    if others:
        names = listed(map(data.relative, files))
        raise DataError(f"{data.root} holds {names}; choose one with --file (data.file)")
    named: list[NamedImage] = []
    try:
        images = read_json(path)["images"]
        # Positions and cocoids could collide, so one or the other for all of a file.
        have_cocoid = all(isinstance(image.get("cocoid"), int) for image in images)
        for index, image in enumerate(images):
            name = Path(image.get("filepath", ""), image["filename"]).as_posix()
            texts = [s["raw"] if "raw" in s else " ".join(s["tokens"]) for s in image["sentences"]]
            image_id = image["cocoid"] if have_cocoid else index
            captions = tuple(map(str.strip, texts))
            named.append(NamedImage(name, captions, image_id, image["split"].strip()))
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: image number {len(named) + 1}: expected filename, split and sentences "
            f"with raw text ({type(error).__name__}: {error}); get the complete file"
        ) from error
    # Flickr's images have no folder in the file; COCO's have.
    usual = data.folder if have_cocoid else data.folder / "images"
    return Annotations(named, [usual, data.folder, path.parent])
