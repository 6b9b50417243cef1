"""Inputs of `captioner batch`: photos of a folder, list or manifest, or WebDataset shards."""

from __future__ import annotations

import csv
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from captioner.errors import DataError
from captioner.storage import expand, file_system, is_url, os_errors

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Source:
    """An input that can be read several times, a row at a time.

    Attributes:
        name: Path, URL or pattern, as the user gave it.
    """

    name: str

    @property
    def is_tars(self) -> bool:
        """Whether a row is a tar file of any number of photos rather than a photo."""
        return self.name.lower().endswith((".tar", ".tar.gz", ".tgz"))

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the id and the path or URL of each photo (of WebDataset shards: of each tar file).

        Raises:
            DataError: The input is missing or not of its form.
        """
        try:
            with os_errors(self.name):
                yield from self._rows()
        except UnicodeDecodeError:
            raise DataError(
                f"{self.name}: is no list or table of photos, which is text in UTF-8; for single "
                "photos there is captioner caption"
            ) from None
        except OSError as error:
            reason = "no such file or folder" if isinstance(error, FileNotFoundError) else error
            raise DataError(f"{self.name}: cannot be read ({reason})") from None

    def _rows(self) -> Iterator[tuple[str, str]]:
        lower = self.name.lower()
        if self.is_tars:
            return ((path, path) for path in expand(self.name))
        if lower.endswith(".parquet"):
            return _parquet_rows(self.name)
        system, path = file_system(self.name)
        if system.isdir(path):
            return _folder_rows(self.name, system, path)
        if lower.endswith((".csv", ".tsv")):
            return _table_rows(self.name, system, path)
        return _list_rows(self.name, system, path)


def _folder_rows(name: str, system: Any, root: str) -> Iterator[tuple[str, str]]:
    """Yield the photos in a folder and the folders in it, by name, without hidden ones."""
    from captioner.data.codecs import HEIF_SUFFIXES
    from captioner.data.transforms import IMAGE_SUFFIXES

    # HEIC photos are listed even where they cannot be read: their rows then hold the error.
    suffixes = IMAGE_SUFFIXES | HEIF_SUFFIXES
    for folder, folders, files in system.walk(root, on_error="raise"):
        # `walk` descends into the folders that remain in this list, in its order.
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for file in sorted(files):
            if not file.startswith(".") and posixpath.splitext(file)[1].lower() in suffixes:
                path = posixpath.join(folder, file)
                identity = posixpath.relpath(path, root)
                yield identity, system.unstrip_protocol(path) if is_url(name) else path


def _list_rows(name: str, system: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the photos of a text file with a path or URL a line."""
    with system.open(path, "r", encoding="utf-8-sig") as lines:
        for line in lines:
            photo = line.rstrip("\r\n")
            if photo.strip():
                yield photo, _resolve(name, photo)


def _table_rows(name: str, system: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the photos of a CSV or TSV file with a header."""
    with system.open(path, "r", encoding="utf-8-sig", newline="") as text:
        delimiter = "\t" if path.lower().endswith(".tsv") else ","
        try:
            rows = csv.DictReader(text, delimiter=delimiter)
            column, ids = _columns(name, list(rows.fieldnames or ()))
            for row in rows:
                if not row[column]:
                    raise DataError(f"{name}, line {rows.line_num}: has no {column}")
                yield row.get(ids) or row[column], _resolve(name, row[column])
        except csv.Error as error:
            raise DataError(f"{name}, line {rows.line_num}: {error}") from None


def _parquet_rows(name: str) -> Iterator[tuple[str, str]]:
    """Yield the photos of Parquet files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for each in expand(name):
        system, path = file_system(each)
        try:
            with system.open(path, "rb") as file:
                table = pq.ParquetFile(file)
                column, ids = _columns(each, table.schema_arrow.names)
                columns = [column, *{ids} & set(table.schema_arrow.names)]
                for batch in table.iter_batches(columns=columns):
                    paths = _texts(each, batch, column)
                    identities = _texts(each, batch, ids) if ids in columns else paths
                    for identity, photo in zip(identities, paths, strict=True):
                        if not photo:
                            raise DataError(f"{each}: a row has no {column}")
                        yield identity or photo, _resolve(each, photo)
        except pa.ArrowInvalid as error:
            raise DataError(f"{each}: is no Parquet file that can be read ({error})") from None


def _texts(name: str, batch: pa.RecordBatch, column: str) -> list[str | None]:
    """Return a column of a Parquet file as texts; ids may be numbers."""
    import pyarrow as pa

    values = batch.column(column)
    try:
        texts: list[str | None] = values.cast(pa.string()).to_pylist()
    except pa.ArrowNotImplementedError:
        raise DataError(
            f"{name}: column {column} holds {values.type}, not text; give a file whose column "
            "path or image has a path or URL a row, and whose id, if any, is text or a number"
        ) from None
    return texts


def _columns(name: str, columns: list[str]) -> tuple[str, str]:
    """Return the names of a table's path column and of its id column, which it may lack."""
    for column in ("path", "image"):
        if column in columns:
            return column, "id"
    raise DataError(
        f"{name}: has no column path (or image); its columns are {', '.join(columns) or 'none'}"
    )


def _resolve(manifest: str, photo: str) -> str:
    """Return the path or URL of a photo in a list; relative paths start at the list's folder."""
    if is_url(photo) or photo.startswith("/"):
        return photo
    return posixpath.join(posixpath.dirname(manifest), photo)
