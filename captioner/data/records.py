"""Rows of tables: CSV and its kin, JSON lists and maps, JSON lines, Parquet."""

from __future__ import annotations

import csv
import io
import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from captioner.data.image_finder import SUFFIXES
from captioner.data.splits import SPLIT_NAMES
from captioner.data.text_files import numbered_lines, quoted, read_json, read_text
from captioner.errors import DataError, needs_extra

# Usual names of columns, in the order in which they are chosen.
IMAGE_COLUMNS = (
    "path image image_path image_file image_name filename file_path file img picture img_path "
    "img_name photo images image_id key url image_url name".split()
)
CAPTION_COLUMNS = (
    "caption captions caption_text image_caption text texts description sentence sentences raw "
    "comment title alt alt_text prompt additional_feature conversations".split()
)
_DELIMITERS = ",\t;|"
_BEFORE_BLANK = re.compile(rf"(\S+(?:{'|'.join(map(re.escape, SUFFIXES))})(?:#\d+)?) +([^\s,;|].*)")

Record = tuple[int, dict[str, Any]]  # the line, or the position, of a row, and its cells by column


def table_records(path: Path, bad: list[str]) -> Iterator[Record]:
    """Yield the rows of a table.

    Args:
        bad: Receives a sentence for each row that cannot be read.

    Raises:
        DataError: The table cannot be read at all.
    """
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _parquet_records(path)
    if suffix in (".json", ".jsonl", ".ndjson"):
        return _json_records(path, bad)
    return _delimited_records(path, bad)


def usual_column(columns: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the first column of one of these names, whatever its case, blanks and hyphens."""
    plain = {_plain(column): column for column in reversed(columns)}
    return next((plain[_plain(name)] for name in names if _plain(name) in plain), None)


def _plain(column: str) -> str:
    """Return the name of a column for comparison.

    >>> _plain("Image Name"), _plain("alt-text")
    ('imagename', 'alttext')
    """
    return re.sub(r"[\s_-]", "", column.lower())


def _delimited_records(path: Path, bad: list[str]) -> Iterator[Record]:
    """Yield the rows of text with cells between commas, tabs, semicolons or pipes.

    A table without a heading has an image first and its caption last, perhaps after a blank.
    """
    text = read_text(path)
    # Excel's first line may name the delimiter; it is left blank to keep the lines' numbers.
    text = re.sub(r'\A"?sep=."?(?=\r?\n)', "", text)
    first = text.strip().partition("\n")[0]
    if _BEFORE_BLANK.fullmatch(first.strip()):
        for line, row in numbered_lines(path):
            if match := _BEFORE_BLANK.fullmatch(row):
                yield line, {"image": match[1], "caption": match[2]}
            else:
                bad.append(f"{path}, line {line}: no name, blank and caption: {quoted(row)}")
        return
    delimiter = delimiter_of(first)
    start, columns = 1, list[str]()
    try:
        reader = _csv_reader(text, delimiter)
        for cells in reader:
            cells = [cell.strip() for cell in cells]
            line, start = start, reader.line_num + 1
            if not any(cells):
                continue
            if not columns:
                if _names_an_image(cells[0]) or _is_sentence(cells):
                    columns = ["image", *(f"column {n}" for n in range(2, len(cells))), "caption"]
                else:
                    columns = _distinct(cells)
                    continue
            if len(cells) > len(columns) and columns[-1].lower() in CAPTION_COLUMNS:
                last = len(columns) - 1  # a caption with unquoted delimiters
                cells = [*cells[:last], f"{delimiter} ".join(cells[last:])]
            if len(cells) == len(columns):
                yield line, dict(zip(columns, cells, strict=True))
            else:
                bad.append(
                    f"{path}, line {line}: {len(cells)} cells under a heading of "
                    f"{len(columns)}; put double quotes around a cell that has {delimiter!r}"
                )
    except csv.Error as error:
        raise DataError(
            f"{path}, line {start}: not readable as CSV ({error}); check for a stray quote"
        ) from error


def _csv_reader(text: str, delimiter: str) -> Any:
    """Return a reader of CSV; captions are not always quoted, and may begin with a quote."""

    def reader(text: str, quoting: Any = csv.QUOTE_MINIMAL) -> Any:
        file = io.StringIO(text, newline="")
        return csv.reader(file, delimiter=delimiter, quoting=quoting, strict=True)

    stray = re.compile(rf'(?m)(^|[{delimiter}])"([^"\n]*)"(?=[^"{delimiter}\r\n])')
    if stray.search(text) is None:
        return reader(text)
    if delimiter in "\t|":
        return reader(text, csv.QUOTE_NONE)
    try:
        for _ in reader(text):
            pass
    except csv.Error:
        return reader(stray.sub(r"\1\2", text))
    return reader(text)


def delimiter_of(heading: str) -> str:
    """Return the delimiter that divides a heading into usual names of columns, or into most."""

    def fit(delimiter: str) -> tuple[bool, int]:
        cells = [cell.strip().strip('"') for cell in heading.split(delimiter)]
        known = usual_column(cells, IMAGE_COLUMNS) is not None or _names_an_image(cells[0])
        return known and len(cells) > 1, len(cells)

    return max(_DELIMITERS, key=fit)


def _names_an_image(cell: str) -> bool:
    return posixpath.splitext(cell.partition("#")[0].lower())[1] in SUFFIXES


def _is_sentence(cells: Sequence[str]) -> bool:
    """Return whether a table's first row is no heading, for its last cell has several words."""
    return cells[-1].count(" ") > 2 and usual_column(cells, IMAGE_COLUMNS) is None


def _distinct(columns: list[str]) -> list[str]:
    """Number columns of one name, as pandas does: caption, caption.1."""
    return [
        f"{name}.{columns[:index].count(name)}" if name in columns[:index] else name
        for index, name in enumerate(columns)
    ]


def _json_records(path: Path, bad: list[str]) -> Iterator[Record]:
    """Yield the rows of JSON lines, or of a list of objects, or of a map from image to captions."""
    text = read_text(path)
    if path.suffix.lower() != ".json" and not text.lstrip().startswith("["):
        yield from _json_lines(path, bad)
        return
    try:
        content = read_json(path)
    except DataError:
        if text.lstrip().startswith("{") and text.strip().count("\n"):  # lines under another suffix
            yield from _json_lines(path, bad)
            return
        raise
    if isinstance(content, dict):
        lists = [value for value in content.values() if _is_list_of_objects(value)]
        if len(lists) == 1:  # such as {"annotations": [...]}
            content = lists[0]
        elif lists and all(name.lower() in SPLIT_NAMES for name in content):
            content = [{**row, "split": name} for name, rows in content.items() for row in rows]
        elif lists:
            return  # another layout, such as COCO's
        elif all(map(_is_image_with_captions, content, content.values())):
            content = [
                {"image": name, **(value if isinstance(value, dict) else {"caption": value})}
                for name, value in content.items()
            ]
    if not isinstance(content, list):
        return
    for number, record in enumerate(content, start=1):
        if isinstance(record, dict):
            yield number, record
        else:
            bad.append(_no_object(path, number, record))


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def _is_image_with_captions(name: str, value: Any) -> bool:
    """Return whether an entry of a JSON object is an image with its captions."""
    if isinstance(value, str):  # a name may lack its suffix, but a caption has several words
        return _names_an_image(name) or value.count(" ") > 1
    return isinstance(value, (dict, list))


def _json_lines(path: Path, bad: list[str]) -> Iterator[Record]:
    for line, text in numbered_lines(path):
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            bad.append(f"{path}, line {line}: not one JSON object ({error})")
            continue
        if isinstance(record, dict):
            yield line, record
        else:
            bad.append(_no_object(path, line, text))


def _no_object(path: Path, line: int, found: object) -> str:
    return (
        f'{path}, line {line}: expected {{"image": name, "caption": text or list of texts}} and '
        f'perhaps "split": name, not {quoted(str(found))}'
    )


def _parquet_records(path: Path) -> Iterator[Record]:
    with needs_extra(f"{path}", "batch"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    try:
        rows: Iterable[Any] = pq.read_table(path).to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} is no Parquet file that can be read ({error})") from None
    yield from enumerate(rows, start=1)
