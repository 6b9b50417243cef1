"""Captioned photos from the field's data sets: Flickr8k, COCO, Karpathy's JSON, and a table.

Readers look at names only; no photo is opened. Several splits are joined with "+", such as
"train+restval". An image that the captions name and that is not on disk is returned in
`Split.missing`, so that the caller can name and count it; when none is on disk at all, or when a
file cannot be understood, the reader stops with one sentence.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from captioner.data.text_files import (
    csv_rows,
    jsonl_rows,
    numbered_lines,
    one_line,
    read_json_object,
    shown,
    the_captions_file,
    wildcards,
)
from captioner.errors import DataError

FORMATS = ("flickr8k", "karpathy", "coco", "table")
# Where the images of a Karpathy file lie: in its own folder, or under the archives' own names.
_KARPATHY_FOLDERS = ("", "images", "flickr30k-images", "Flicker8k_Dataset")
_COCO_SPLIT_LISTS = ("train", "val", "test", "restval")
_COCO_NAME = re.compile(r"(?:COCO_([a-z]+\d{4})_)?(\d{12})\.jpg")


@dataclass(frozen=True)
class CaptionedPhoto:
    """A photo, its captions with white space made single spaces, and its id in COCO results."""

    path: Path
    captions: tuple[str, ...]
    image_id: int | str


@dataclass(frozen=True)
class Split:
    """The photos of a split that are on disk, in the order of its file, and paths that are not."""

    photos: list[CaptionedPhoto]
    missing: list[Path]


def read_split(
    *,
    format: str,
    root: str | Path,
    split: str,
    file: str | Path | None = None,
    coco_splits: str | Path | None = None,
) -> Split:
    """Read one split, or several joined with "+", of the data set in `root`.

    flickr8k: images/, Flickr8k.token.txt and Flickr_8k.{train,dev,test}Images.txt; "val" is "dev".
        Ids are positions in the token file.
    karpathy: dataset_*.json (or `file`), and its images in root or root/images, below the folder
        that the file gives as `filepath` if it does. Ids are cocoid, else positions in the file.
    coco: annotations/captions_{split}.json beside {split}/, such as train2017. With `coco_splits`,
        a folder of coco_{train,val,test,restval}.txt, the split is one of these four lists of
        image names, looked up in all captions_*.json that lie beside their images; a COCO name of
        2014 also finds the image under its name of 2017, by its number, and a name found nowhere
        is missing. Ids are COCO's own.
    table: a CSV or JSONL file (`root` itself, `file`, or the only one in root) with the columns
        image, caption and, if need be, split; several rows for an image are several captions, and
        in JSONL a caption may be a list. Image paths are relative to the table. Without a split
        column every row belongs to every split asked for. Ids are positions of the images.

    No id depends on which images are on disk. In the JSON formats, images without captions are
    left out.

    Raises:
        DataError: something is missing, malformed or empty; the message names the file and, where
            it has lines, the line.
    """
    root = Path(root)
    if format not in FORMATS:
        raise DataError(f"unknown data format {format!r}; use one of {', '.join(FORMATS)}")
    if not root.exists():
        raise DataError(f"the data folder {root} does not exist; correct the data root")
    if root.is_file() and (format != "table" or file is not None):
        raise DataError(f"the data root {root} is a file; name its folder as the root")
    if file is not None and format not in ("karpathy", "table"):
        raise DataError(f"format {format} knows its captions file; leave out {file}")
    if coco_splits is not None and format != "coco":
        raise DataError(f"the split lists in {coco_splits} are for format coco, not {format}")
    names = list(dict.fromkeys(name.strip() for name in split.split("+")))
    if not all(names):
        raise DataError(
            f'{split!r} is no split name; give one such as "train", or several joined with "+"'
        )
    disk = _Disk()
    if format == "flickr8k":
        photos = _flickr8k(root, names)
    elif format == "karpathy":
        photos = _karpathy(root, names, file, disk)
    elif format == "table":
        photos = _table(root, names, file)
    elif coco_splits is not None:
        photos = _coco_by_name(root, names, Path(coco_splits), disk)
    else:
        photos = _coco(root, names)
    if not photos:
        raise DataError(f"split {split!r} of {root} is empty; ask for another or fill it")
    present = [photo for photo in photos if photo.path in disk]
    missing = [photo.path for photo in photos if photo.path not in disk]
    if not present:
        raise DataError(
            f"none of the {len(photos)} images of split {split!r} is on disk, the first was looked "
            f"for at {missing[0]}; put the images there or correct the data root"
        )
    return Split(present, missing)


class _Disk:
    """Knows which files exist after listing each folder once.

    One listing of a folder takes the place of a hundred thousand stats, slow on network disks.
    """

    def __init__(self) -> None:
        self._names: dict[str, frozenset[str]] = {}

    def __contains__(self, path: Path) -> bool:
        folder, name = os.path.split(path)
        if folder not in self._names:
            try:
                self._names[folder] = frozenset(os.listdir(folder or "."))
            except (FileNotFoundError, NotADirectoryError):
                self._names[folder] = frozenset()
            except OSError as error:
                raise DataError(
                    f"the folder {folder} cannot be listed ({error.strerror}); check its rights"
                ) from error
        return name in self._names[folder]


def _flickr8k(root: Path, names: Sequence[str]) -> list[CaptionedPhoto]:
    token_file = root / "Flickr8k.token.txt"
    captions: dict[str, list[str]] = {}
    for number, line in numbered_lines(token_file):
        label, tab, text = line.partition("\t")
        name, _, index = label.rpartition("#")
        if not (tab and name and index.isdigit()):
            raise DataError(
                f"{token_file}, line {number}: expected NAME#NUMBER, a tab and a caption, "
                f"not {shown(line)}"
            )
        captions.setdefault(name, []).append(one_line(text))
    ids = {name: index for index, name in enumerate(captions)}
    photos: dict[str, CaptionedPhoto] = {}
    for split in names:
        split = "dev" if split == "val" else split
        split_file = root / f"Flickr_8k.{split}Images.txt"
        if not split_file.is_file():
            raise DataError(
                f"there is no {split_file}; "
                + _splits_there(wildcards(root, "Flickr_8k.*Images.txt"))
            )
        for number, name in numbered_lines(split_file):
            if name not in captions:
                raise DataError(
                    f"{split_file}, line {number}: {shown(name)} has no caption in {token_file}; "
                    "each line must be the name of an image that has"
                )
            photos[name] = CaptionedPhoto(root / "images" / name, tuple(captions[name]), ids[name])
    return list(photos.values())


def _karpathy(
    root: Path, names: Sequence[str], file: str | Path | None, disk: _Disk
) -> list[CaptionedPhoto]:
    path = the_captions_file(root, file, ("dataset_*.json",))
    data = read_json_object(path)
    images = data.get("images")
    if not isinstance(images, list):
        raise DataError(f'{path} has no list "images"; it is not a Karpathy data set')
    # Positions and cocoids could collide, so one or the other for all of a file.
    have_cocoid = all(isinstance(image, dict) and "cocoid" in image for image in images)
    splits: set[str] = set()
    photos = []
    for index, image in enumerate(images):
        try:
            split, name, folder = image["split"], image["filename"], image.get("filepath", "")
            texts = (one_line(sentence["raw"]) for sentence in image["sentences"])
            captions = tuple(text for text in texts if text)
            relative = Path(folder, name)
            splits.add(split)
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}, image number {index + 1}: expected filename, split and sentences with "
                f"raw text ({type(error).__name__}: {error})"
            ) from error
        if split in names and captions:
            places = [root / base / relative for base in _KARPATHY_FOLDERS]
            usual = places[0] if folder else places[1]
            found = next((place for place in places if place in disk), usual)
            image_id = image["cocoid"] if have_cocoid else index
            photos.append(CaptionedPhoto(found, captions, image_id))
    _check_splits(path, names, splits)
    return photos


def _coco(root: Path, names: Sequence[str]) -> list[CaptionedPhoto]:
    photos = []
    for split in names:
        path = root / "annotations" / f"captions_{split}.json"
        if not path.is_file():
            raise DataError(f"there is no {path}; " + _splits_there(_coco_annotated(root)))
        photos += _coco_captions(path, root / split)
    return photos


def _coco_captions(path: Path, folder: Path) -> list[CaptionedPhoto]:
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
            if captions:
                photos.append(CaptionedPhoto(folder / image["file_name"], captions, image_id))
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is not a COCO captions file: expected images with id and file_name, and "
            f"annotations with id, image_id and caption ({type(error).__name__}: {error})"
        ) from error
    return photos


def _coco_annotated(root: Path) -> list[str]:
    return wildcards(root / "annotations", "captions_*.json")


def _coco_by_name(
    root: Path, names: Sequence[str], coco_splits: Path, disk: _Disk
) -> list[CaptionedPhoto]:
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
    by_name: dict[str, list[CaptionedPhoto]] = {}
    by_number: dict[str, list[CaptionedPhoto]] = {}
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
            candidates = [CaptionedPhoto(root / folder / name, (), name)]
            if candidates[0].path in disk:
                raise DataError(
                    f"{candidates[0].path} has no caption in any of {root}/annotations/"
                    f"captions_*.json; put captions_{folder or 'NAME'}.json there"
                )
        there = (photo for photo in candidates if photo.path in disk)
        photos.append(next(there, candidates[0]))
    return photos


def _table(root: Path, names: Sequence[str], file: str | Path | None) -> list[CaptionedPhoto]:
    path = root if root.is_file() else the_captions_file(root, file, ("*.csv", "*.jsonl"))
    kinds = {".csv": csv_rows, ".jsonl": jsonl_rows}
    if path.suffix.lower() not in kinds:
        raise DataError(f"the table {path} must be a .csv or .jsonl file")
    rows = list(kinds[path.suffix.lower()](path))
    has_splits = any(row.split for row in rows)
    ids: dict[Path, int] = {}
    captions: dict[Path, list[str]] = {}
    for row in rows:
        if has_splits and not row.split:
            raise DataError(
                f"{path}, line {row.line}: the split is empty, but other rows have one; fill it"
            )
        image = path.parent / row.image
        ids.setdefault(image, len(ids))
        if not has_splits or row.split in names:
            captions.setdefault(image, []).extend(row.captions)
    if has_splits:
        _check_splits(path, names, {row.split for row in rows})
    return [CaptionedPhoto(image, tuple(texts), ids[image]) for image, texts in captions.items()]


def _check_splits(path: Path, names: Sequence[str], splits: Iterable[str]) -> None:
    for name in names:
        if name not in splits:
            raise DataError(f"{path} has no split {name!r}; " + _splits_there(splits))


def _splits_there(names: Iterable[str]) -> str:
    return f"the splits there are: {', '.join(sorted(map(str, names))) or 'none'}"
