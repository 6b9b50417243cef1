"""Tables of images and captions, Hugging Face's imagefolder and the Flickr data sets among them."""

from __future__ import annotations

import ast
import contextlib
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from captioner.data.layouts import Annotations, DataFiles, NamedImage, Recognised
from captioner.data.records import (
    CAPTION_COLUMNS,
    IMAGE_COLUMNS,
    numbered_lines,
    quoted,
    table_records,
    usual_column,
)
from captioner.data.splits import SPLIT_NAMES, split_name, split_of_folder
from captioner.errors import DataError, listed
from captioner.log import logger
from captioner.storage import is_url

MOST_ROWS = 10  # that cannot be read are named one by one
_SUFFIXES = (".csv", ".tsv", ".txt", ".token", ".jsonl", ".ndjson", ".json", ".parquet")
_NUMBERED = re.compile(r"(.+\.\w+)#\d+")  # NAME.jpg#0, as Flickr8k and Flickr30k number them
_TEXT = re.compile(r"""(?s:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")
# As pandas writes a list of texts; NumPy puts no commas between them.
_LIST = re.compile(rf"\[\s*{_TEXT.pattern}(?:[\s,]+{_TEXT.pattern})*\s*\]")
_ANSWERS = ("gpt", "assistant")  # whose turns of a conversation are captions
_COCO_FILE = re.compile(r"(instances|person_keypoints|stuff|panoptic|captions|image_info)_.*\.json")


def table(data: DataFiles) -> Recognised | None:
    """Find the table that the user names, or the only one in the root.

    Several files are the splits of one data set if they are called so, as train.csv and val.csv.
    Ids are those of a column image_id, or else positions of the images.
    """
    found = [path for path in possible_tables(data) if _is_table(path, data)]
    least = min((len(path.parts) for path in found), default=0)  # the least deep folder with any
    paths = [path for path in found if len(path.parts) == least]
    names = listed(map(data.relative, paths))

    def read() -> Annotations:
        splits = [""]
        if len(paths) > 1:  # named after their splits, as flickr30k_val.json
            splits = [split_name(re.split(r"[_.-]", path.stem)[-1]) for path in paths]
        if len(paths) > 1 and not SPLIT_NAMES.issuperset(splits):
            raise DataError(
                f"{data.root} holds several tables: {names}; choose one with --file (data.file)"
            )
        return read_tables(data, list(zip(paths, splits, strict=True)))

    return Recognised(f"table {names}", read) if paths else None


def imagefolder(data: DataFiles) -> Recognised | None:
    """Find `metadata.csv`, `metadata.jsonl` or `metadata.parquet` of Hugging Face's imagefolder.

    Names begin at its folder. A folder called train, validation or test is a split: that of the
    metadata file, or that which the name of each image begins with.
    """
    paths = data.candidates("metadata.csv", "metadata.jsonl", "metadata.parquet")

    def read() -> Annotations:
        images: list[NamedImage] = []
        for path in paths:
            folder = data.relative(path.parent)
            for image in read_tables(data, [(path, "")]).images:
                name = Path(folder, str(image.name)).as_posix()
                images.append(replace(image, name=name, image_id=len(images)))
        folders = [split_of_folder(str(image.name)) for image in images]
        if all(folders):
            pairs = zip(images, folders, strict=True)
            images = [replace(image, split=image.split or folder) for image, folder in pairs]
        return Annotations(images, [data.folder])

    title = f"Hugging Face's imagefolder: {listed(map(data.relative, paths), 3)}"
    return Recognised(title, read) if paths else None


def flickr8k(data: DataFiles) -> Recognised | None:
    """Find `Flickr8k.token.txt` or Kaggle's `captions.txt`; ids are positions of the images."""
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
    if not images:
        logger.warning(
            f"{data.root}: Flickr8k without its own splits, on most of whose photos the bundled "
            "models were trained, so their scores are too good; put Flickr_8k.trainImages.txt, "
            f"Flickr_8k.devImages.txt and Flickr_8k.testImages.txt next to {captions.name}"
        )
    return Annotations(images or annotations.images, folders)


def read_tables(data: DataFiles, tables: Sequence[tuple[Path, str]]) -> Annotations:
    """Return the images of tables, each with the name of its split, or "" if rows name theirs."""
    ids: dict[str, Any] = {}
    captions: dict[tuple[str, str], list[str]] = {}
    bad: list[str] = []
    for path, split in tables:
        rows = list(_rows(path, data, bad))
        has_splits = any(row[-1] for row in rows)
        if has_splits and (empty := [line for line, *_, of_row in rows if not of_row]):
            lines = f"{path}, line {listed(empty)}"
            bad.append(f"{lines}: the split is empty, but other rows have one; fill it")
        for _, name, texts, image_id, of_row in rows:
            ids.setdefault(name, image_id)
            captions.setdefault((name, split or of_row), []).extend(texts)
    if bad:
        more = f"; {len(bad)} rows in all cannot be read" if bad[1:] else ""
        raise DataError("; ".join(bad[:MOST_ROWS]) + more)
    if None in ids.values() or len(set(ids.values())) < len(ids):
        ids = {name: position for position, name in enumerate(ids)}
    images = [
        NamedImage(name, tuple(texts), ids[name], split)
        for (name, split), texts in captions.items()
    ]
    # Some programs write paths from where they run.
    return Annotations(images, [*dict.fromkeys(path.parent for path, _ in tables), Path()])


def possible_tables(data: DataFiles) -> list[Path]:
    """Return the files that may be tables: not the text of an image or of a tar file."""
    if data.named_file is not None:
        return [data.named_file] if data.named_file.suffix.lower() in _SUFFIXES else []
    tars = [path for path in data.others if path.suffix == ".tar"]
    described = {path.with_suffix("") for path in [*data.images, *tars]} | {*data.images}
    folders, stems = {i.parent for i in data.images}, {i.stem for i in data.images}
    # img2dataset's 00000.parquet describes the photos in 00000; train.csv may be the captions of
    # those in train.
    described |= {folder for folder in folders if folder.name.isdecimal()}
    return [
        path
        for path in data.others
        if path.suffix.lower() in _SUFFIXES
        and path.with_suffix("") not in described
        and not (path.suffix in (".txt", ".json") and path.stem in stems)
        and (path.with_suffix("") not in folders or columns_of(path))
        and not path.name.endswith("_stats.json")
        and not _COCO_FILE.fullmatch(path.name)
    ]


def _is_table(path: Path, data: DataFiles) -> bool:
    """Return whether a file has images and captions, or is a damaged or empty table by its name."""
    named_so = data.named_file is not None or path.suffix.lower() in (".csv", ".jsonl", ".tsv")
    columns = columns_of(path)
    if not columns:
        return named_so and (columns is None or path.suffix.lower() != ".json")
    return _chosen_columns(columns, data) is not None


def columns_of(path: Path) -> list[str] | None:
    """Return the columns by the first row, none of an empty table; None if it is damaged."""
    bad: list[str] = []
    try:
        first = next(table_records(path, bad), None)
    except DataError:
        return None
    return None if bad else list(first[1]) if first else []


def _chosen_columns(columns: Sequence[str], data: DataFiles) -> tuple[str, list[str]] | None:
    """Return the column of images and those of captions, such as caption_1 and caption.2."""
    image = usual_column(columns, [data.image_column] if data.image_column else IMAGE_COLUMNS)
    if data.caption_column:
        captions = [c for c in columns if c == usual_column(columns, [data.caption_column])]
    else:
        kinds = [re.sub(r"[\s_.-]*\d+$", "", column.strip()) for column in columns]
        usual = usual_column(kinds, CAPTION_COLUMNS)
        captions = [column for column, kind in zip(columns, kinds, strict=True) if kind == usual]
    return None if image is None or not captions else (image, captions)


def _rows(
    path: Path, data: DataFiles, bad: list[str]
) -> Iterator[tuple[int, str, tuple[str, ...], int | str | None, str]]:
    """Yield line, image, captions, id and split of a table's rows; add to `bad` as they do."""
    chosen: tuple[str, list[str]] | None = None
    # Names of train.csv may begin in train/.
    folder = path.with_suffix("")
    inside = (image for image in data.images if folder in image.parents)
    own = {image.relative_to(folder).as_posix() for image in inside}
    for line, record in table_records(path, bad):
        chosen = chosen or _chosen_columns(list(record), data)
        if chosen is None:
            raise DataError(
                f"{path}, line {line}: no columns of images and captions are recognised in "
                f"{listed(record)}; name them with --image-column and --caption-column"
            )
        image, captions = record.get(chosen[0]), texts_of([record.get(c) for c in chosen[1]])
        if isinstance(image, (bytes, dict, list)):
            raise DataError(
                f"{path}: its column {chosen[0]} holds no names of image files, perhaps the images "
                "themselves; write each as a file, and a metadata.csv of file_name,text beside them"
            )
        name = "" if image is None else str(image).strip()
        if not name:
            bad.append(f"{path}, line {line}: the image is empty")
        elif captions is None:
            bad.append(
                f"{path}, line {line}: expected a text or a list of texts as the caption, not "
                f"{quoted(repr(record.get(chosen[1][0])))}"
            )
        else:
            if numbered := _NUMBERED.fullmatch(name):
                name = numbered[1]
            name = name if is_url(name) else posixpath.normpath(name)
            if name in own and not (path.parent / name).exists():
                name = f"{path.stem}/{name}"
            cells = {column.strip().lower(): cell for column, cell in record.items()}
            names_images = chosen[0].strip().lower() == "image_id"
            image_id = None if names_images else _plain_id(cells.get("image_id"))
            split = str(cells.get("split") or "").strip()
            yield line, name, captions or ("",), image_id, split  # "": counted as left out


def _plain_id(cell: Any) -> int | str | None:
    """Return the id in a cell, a number where it is one; None for other types and empty cells."""
    if isinstance(cell, float) and cell.is_integer():  # as pandas writes
        return int(cell)
    if isinstance(cell, str):
        return int(cell) if cell.isdecimal() else cell or None
    return cell if isinstance(cell, int) else None


def texts_of(cells: Sequence[Any]) -> tuple[str, ...] | None:
    """Return the texts of a row's cells, which may be lists, also as JSON or Python.

    None if a cell is of another type.
    """
    found: list[str] = []
    for value in cells:
        if isinstance(value, str) and _LIST.fullmatch(value):
            with contextlib.suppress(ValueError, SyntaxError):
                value = [ast.literal_eval(text) for text in _TEXT.findall(value)]
        if isinstance(value, list) and all(isinstance(turn, dict) for turn in value):
            value = [turn.get("value") for turn in value if turn.get("from") in _ANSWERS]
        texts = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(text, str) for text in texts):
            return None
        found += texts
    return tuple(filter(str.strip, found))
