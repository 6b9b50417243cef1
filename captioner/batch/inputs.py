"""Inputs of `captioner batch`, and the shards that they are divided into."""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from captioner.data.image_finder import SUFFIXES, files_of_others
from captioner.data.layouts import CaptionedData, DataFiles
from captioner.data.records import IMAGE_COLUMNS, delimiter_of, table_records, usual_column
from captioner.errors import DataError
from captioner.log import logger
from captioner.storage import accessing, expand, file_system, is_url

Row = tuple[str, str]  # id and path or URL of a photo, or of a tar file of photos


@dataclass(frozen=True)
class Shard:
    """Photos that a worker does at once, for one part of the output."""

    number: int
    rows: list[Row]

    @property
    def digest(self) -> str:
        """Digest of the rows, by which a part is known as complete."""
        return hashlib.sha256(repr(self.rows).encode(errors="surrogatepass")).hexdigest()[:16]


def is_tar(name: str) -> bool:
    """Return whether an input is tar files of any number of photos each."""
    return name.lower().endswith((".tar", ".tar.gz", ".tgz"))


def shards_of(source: str, shard_size: int, image_column: str | None = None) -> list[Shard]:
    """Divide an input into shards, always in the same way; a tar file is a shard."""
    rows = input_rows(source, image_column)
    size = 1 if is_tar(source) else shard_size
    parts = iter(lambda: list(islice(rows, size)), [])
    shards = [Shard(number, part) for number, part in enumerate(parts)]
    if not shards:
        raise DataError(f"{source}: holds no photos (tar files are named as 'DIR/*.tar')")
    return shards


def input_rows(name: str, image_column: str | None = None) -> Iterator[Row]:
    """Yield the id and the path or URL of each photo (of WebDataset shards: of each tar file).

    `image_column` is a table's column of photos, if it has no usual name.
    """
    try:
        with accessing(name):
            yield from _input_rows(name, image_column)
    except FileNotFoundError:
        raise DataError(f"{name}: no such file or folder") from None
    except (UnicodeDecodeError, pa.ArrowInvalid) as error:
        raise DataError(
            f"{name}: is no list or table of photos that can be read ({error}); for single photos "
            "there is captioner caption"
        ) from None


def _input_rows(name: str, column: str | None) -> Iterator[Row]:
    lower = name.lower()
    if is_tar(name):
        return ((path, path) for path in expand(name))
    if lower.endswith(".parquet"):
        tables = ((each, _parquet(each, column)) for each in expand(name))
        return (row for each, records in tables for row in _table_rows(each, records, column))
    system, path = file_system(name)
    if system.isdir(path):
        return _folder_rows(name, system, path, path, seen=set())
    if any(sign in name for sign in "*?[{") and not system.exists(path):
        return ((each, each) for each in expand(name))
    if not (column or is_url(name)) and (data := _captioned_data(name)) is not None:
        split = data.everything()
        images = [image.path for image in (*split.images, *split.uncaptioned)]
        found = map(str, [*images, *split.missing])
        return ((os.path.relpath(path, data.data.folder), path) for path in found)
    if lower.endswith((".csv", ".tsv", ".jsonl", ".ndjson", ".json")):
        return _table_rows(name, _records(name), column)
    with system.open(path, "r", encoding="utf-8-sig") as lines:  # a path or URL a line
        photos = [photo for line in lines if (photo := line.strip("\r\n"))]
    return ((photo, _resolve(name, photo)) for photo in photos)


def _captioned_data(name: str) -> CaptionedData | None:
    """Return the data set that a file describes, such as COCO's captions; None for a plain list."""
    if name.lower().endswith(".txt"):  # a list of photos, whose names may have commas, or a table
        with open(name, encoding="utf-8-sig") as lines:
            heading = lines.readline().strip()
        if usual_column(heading.split(delimiter_of(heading)), IMAGE_COLUMNS) is None:
            return None
    try:
        return CaptionedData(DataFiles(root=name), val_share=0.0)
    except DataError:
        return None


def _folder_rows(name: str, system: Any, top: str, folder: str, seen: set[str]) -> Iterator[Row]:
    """Yield the photos in a folder and those in it, by name, without hidden and drawn ones.

    Links to folders are followed, but no folder is gone into twice.
    """
    if (real := os.path.realpath(folder)) in seen:
        return
    seen.add(real)
    # A level at a time: below the first, `walk` does not raise where it cannot list a folder.
    with accessing(folder):
        ((_, folders, files),) = system.walk(folder, maxdepth=1, on_error="raise", detail=True)
    for file in files_of_others(Path(folder), files):
        # HEIC photos are listed even where they cannot be read: their rows then hold the error.
        if posixpath.splitext(file)[1].lower() in SUFFIXES:
            path = posixpath.join(folder, file)
            identity = posixpath.relpath(path, top)
            yield identity, system.unstrip_protocol(path) if is_url(name) else path
    links = [file for file, information in files.items() if information.get("islink")]
    for each in sorted(each for each in (*folders, *links) if not each.startswith(".")):
        if each in folders or system.isdir(posixpath.join(folder, each)):
            yield from _folder_rows(name, system, top, posixpath.join(folder, each), seen)


def _table_rows(
    name: str, records: Iterator[dict[str, Any]], image_column: str | None
) -> Iterator[Row]:
    """Yield the photos of a table, whose id, where it has one, may be a number."""
    column, empty = None, list[int]()
    for number, record in enumerate(records, start=1):
        names = [image_column] if image_column else IMAGE_COLUMNS
        column = column or usual_column(list(record), names)
        if column is None:
            raise DataError(
                f"{name}: has no column {image_column or 'path, image or file_name'}; its columns "
                f"are {', '.join(record) or 'none'} (name that of the photos with --image-column)"
            )
        photo = record.get(column)
        if photo in (None, ""):
            empty.append(number)
            continue
        if not isinstance(photo, str):
            raise DataError(
                f"{name}, row {number}: the {column} is {str(photo)[:50]!r}; use a path or URL, "
                "and write images that the table holds as files"
            )
        yield str(record.get("id") or photo), _resolve(name, photo)
    if empty:
        logger.warning(f"{name}: {len(empty)} rows without a {column}, the first is row {empty[0]}")


def _records(name: str) -> Iterator[dict[str, Any]]:
    path = name
    if is_url(name):
        path = fsspec.open_local(f"simplecache::{name}", simplecache={"same_names": True})
    bad: list[str] = []
    yield from (record for _, record in table_records(Path(path), bad))
    if bad:
        raise DataError(bad[0])


def _parquet(name: str, column: str | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file, of the columns that `_table_rows` reads."""
    system, path = file_system(name)
    with system.open(path, "rb") as file:
        table = pq.ParquetFile(file)
        names = table.schema_arrow.names
        photos = usual_column(names, [column] if column else IMAGE_COLUMNS)
        if photos is None:  # a row to name the columns by, which is refused
            yield dict.fromkeys(names)
            return
        columns = [name for name in names if name == photos or name.lower() == "id"]
        for batch in table.iter_batches(columns=columns):
            yield from batch.to_pylist()


def _resolve(table: str, photo: str) -> str:
    """Return the path or URL of a photo in a list; relative paths start at the list's folder."""
    return photo if is_url(photo) else posixpath.join(posixpath.dirname(table), photo)
