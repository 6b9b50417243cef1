"""Captioned photos from the field's data sets: Flickr8k, COCO, Karpathy's JSON, and a table.

Readers look at names only; no photo is opened. Several splits are joined with "+", such as
"train+restval". An image that the captions name and that is not on disk is returned in
`Split.missing`, so that the caller can name and count it, and one that has no captions in
`Split.uncaptioned`; when none is on disk at all, or when a file cannot be understood, the reader
stops with one sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from captioner.data.captioned import CaptionedImage, Disk, splits_there
from captioner.data.coco import coco_split, coco_split_by_name
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


@dataclass(frozen=True)
class Split:
    """The photos of a split, each part in the order of its file.

    photos: those with captions on disk. missing: paths that are not there. uncaptioned: photos on
    disk without captions, as all of COCO's test split are.
    """

    photos: list[CaptionedImage]
    missing: list[Path]
    uncaptioned: list[CaptionedImage] = field(default_factory=list)


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
    coco: annotations/captions_{split}.json beside {split}/, such as train2017; for a split whose
        captions are kept back, image_info_{split}.json. With `coco_splits`,
        a folder of coco_{train,val,test,restval}.txt, the split is one of these four lists of
        image names, looked up in all captions_*.json that lie beside their images; a COCO name of
        2014 also finds the image under its name of 2017, by its number, and a name found nowhere
        is missing. Ids are COCO's own.
    table: a CSV or JSONL file (`root` itself, `file`, or the only one in root) with the columns
        image, caption and, if need be, split; several rows for an image are several captions, and
        in JSONL a caption may be a list. Image paths are relative to the table. Without a split
        column every row belongs to every split asked for. Ids are positions of the images.

    No id depends on which images are on disk.

    Raises:
        DataError: something is missing, malformed or empty; the message names the file and, where
            it has lines, the line.
    """
    disk = Disk()
    found = _found(format, Path(root), split, file, coco_splits, disk)
    present = [photo for photo in found if photo.path in disk]
    missing = [photo.path for photo in found if photo.path not in disk]
    if not present:
        raise DataError(
            f"none of the {len(found)} images of split {split!r} is on disk, the first was looked "
            f"for at {missing[0]}; put the images there or correct the data root"
        )
    return Split(
        [photo for photo in present if photo.captions],
        missing,
        [photo for photo in present if not photo.captions],
    )


def read_captions(
    *,
    format: str,
    root: str | Path,
    split: str,
    file: str | Path | None = None,
    coco_splits: str | Path | None = None,
) -> list[str]:
    """All captions of a split, also of photos that are not on disk; else as `read_split`."""
    photos = _found(format, Path(root), split, file, coco_splits, Disk())
    return [text for photo in photos for text in photo.captions]


def _found(
    format: str,
    root: Path,
    split: str,
    file: str | Path | None,
    coco_splits: str | Path | None,
    disk: Disk,
) -> list[CaptionedImage]:
    """The photos that the files of a split name."""
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
    if format == "flickr8k":
        photos = _flickr8k(root, names)
    elif format == "karpathy":
        photos = _karpathy(root, names, file, disk)
    elif format == "table":
        photos = _table(root, names, file)
    elif coco_splits is not None:
        photos = coco_split_by_name(root, names, Path(coco_splits), disk)
    else:
        photos = coco_split(root, names)
    if not photos:
        raise DataError(f"split {split!r} of {root} is empty; ask for another or fill it")
    return photos


def _flickr8k(root: Path, names: Sequence[str]) -> list[CaptionedImage]:
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
    photos: dict[str, CaptionedImage] = {}
    for split in names:
        split = "dev" if split == "val" else split
        split_file = root / f"Flickr_8k.{split}Images.txt"
        if not split_file.is_file():
            raise DataError(
                f"there is no {split_file}; "
                + splits_there(wildcards(root, "Flickr_8k.*Images.txt"))
            )
        for number, name in numbered_lines(split_file):
            if name not in captions:
                raise DataError(
                    f"{split_file}, line {number}: {shown(name)} has no caption in {token_file}; "
                    "each line must be the name of an image that has"
                )
            photos[name] = CaptionedImage(root / "images" / name, tuple(captions[name]), ids[name])
    return list(photos.values())


def _karpathy(
    root: Path, names: Sequence[str], file: str | Path | None, disk: Disk
) -> list[CaptionedImage]:
    path = the_captions_file(root, file, ("dataset_*.json",))
    data = read_json_object(path)
    images = data.get("images")
    if not isinstance(images, list):
        raise DataError(f'{path} has no list "images"; it is not a Karpathy data set')
    # Positions and cocoids could collide, so one or the other for all of a file.
    have_cocoid = all(isinstance(image, dict) and "cocoid" in image for image in images)
    splits: set[str] = set()
    ids: set[int | str] = set()
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
        if split in names:
            places = [root / base / relative for base in _KARPATHY_FOLDERS]
            usual = places[0] if folder else places[1]
            found = next((place for place in places if place in disk), usual)
            image_id = image["cocoid"] if have_cocoid else index
            if not isinstance(image_id, (int, str)) or image_id in ids:
                raise DataError(
                    f"{path}, image number {index + 1}: cocoid must be a number or a text that no "
                    f"other image has, not {shown(repr(image_id))}"
                )
            ids.add(image_id)
            photos.append(CaptionedImage(found, captions, image_id))
    _check_splits(path, names, splits)
    return photos


def _table(root: Path, names: Sequence[str], file: str | Path | None) -> list[CaptionedImage]:
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
    return [CaptionedImage(image, tuple(texts), ids[image]) for image, texts in captions.items()]


def _check_splits(path: Path, names: Sequence[str], splits: Iterable[str]) -> None:
    for name in names:
        if name not in splits:
            raise DataError(f"{path} has no split {name!r}; " + splits_there(splits))
