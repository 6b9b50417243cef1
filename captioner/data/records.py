"""Text files of captions and rows of tables: CSV and its kin, JSON, JSON lines, Parquet.

What cannot be read raises a DataError that names file and line.
"""

from __future__ import annotations

import csv
import io
import json
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from captioner.data.image_finder import SUFFIXES
from captioner.data.splits import SPLIT_NAMES
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
    """Yield the rows of a table; `bad` receives a sentence for each that cannot be read."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        with needs_extra(f"{path}", "batch"):
            import pyarrow.parquet as pq
        try:
            yield from enumerate(pq.read_table(path).to_pylist(), start=1)
        except (ValueError, OSError) as error:  # pyarrow's are of these kinds
            raise DataError(f"{path} is no Parquet file that can be read ({error})") from None
    elif suffix not in (".json", ".jsonl", ".ndjson"):
        yield from _delimited_records(path, bad)
    else:
        for line, row in _json_rows(path, bad):
            if isinstance(row, dict):
                yield line, row
            else:
                bad.append(
                    f'{path}, line {line}: expected {{"image": name, "caption": text or list of '
                    f'texts}} and perhaps "split": name, not {quoted(str(row))}'
                )


def usual_column(columns: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the first column of one of these names, whatever its case, blanks and hyphens."""

    def plain(column: str) -> str:
        return re.sub(r"[\s_-]", "", column.lower())

    found = {plain(column): column for column in reversed(columns)}
    return next((found[plain(name)] for name in names if plain(name) in found), None)


def _delimited_records(path: Path, bad: list[str]) -> Iterator[Record]:
    """Yield the rows of delimited text; without a heading, the image is first, its caption last."""
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
    delimiter = "\t" if path.suffix.lower() == ".tsv" and "\t" in first else delimiter_of(first)
    if delimiter == "|":  # a row of Kaggle's Flickr30k lacks its second one
        text = re.sub(r"(?m)^([^|\n]+\|\s*\d+)\s+(?=[^|\n]+$)", r"\1| ", text)
    columns: list[str] = []
    for line, cells in _csv_rows(path, text, delimiter):
        if not any(cells):
            continue
        if not columns:
            is_sentence = cells[-1].count(" ") > 2 and usual_column(cells, IMAGE_COLUMNS) is None
            if not is_sentence and not _names_an_image(cells[0]):
                columns = [  # of one name, numbered as by pandas: caption, caption.1
                    f"{name}.{cells[:index].count(name)}" if name in cells[:index] else name
                    for index, name in enumerate(cells)
                ]
                continue
            columns = ["image", *(f"column {n}" for n in range(2, len(cells))), "caption"]
        if len(cells) > len(columns) and columns[-1].lower() in CAPTION_COLUMNS:
            last = len(columns) - 1  # a caption with unquoted delimiters
            cells = [*cells[:last], f"{delimiter} ".join(cells[last:])]
        if len(cells) == len(columns):
            yield line, dict(zip(columns, cells, strict=True))
        else:
            bad.append(
                f"{path}, line {line}: {len(cells)} cells under a heading of {len(columns)}; put "
                f"double quotes around a cell that has {delimiter!r}"
            )


def _csv_rows(path: Path, text: str, delimiter: str) -> list[tuple[int, list[str]]]:
    """Return first lines and cells; captions are not always quoted, and may begin with a quote."""
    stray = re.compile(rf'(?m)(^|[{delimiter}])"([^"\n]*)"(?=[^"{delimiter}\r\n])')
    unquoted = delimiter in "\t|" and (".token" in path.name or stray.search(text))
    quoting: Any = csv.QUOTE_NONE if unquoted else csv.QUOTE_MINIMAL
    problem = ""
    for content in (text, stray.sub(r"\1\2", text)):
        file, line = io.StringIO(content, newline=""), 1
        reader = csv.reader(file, delimiter=delimiter, quoting=quoting, strict=True)
        rows = []
        try:
            for cells in reader:
                rows.append((line, [cell.strip() for cell in cells]))
                line = reader.line_num + 1
            return rows
        except csv.Error as error:
            problem = f"{path}, line {line}: not readable as CSV ({error}); check for a stray quote"
    raise DataError(problem)


def delimiter_of(heading: str) -> str:
    """Return the delimiter that divides a heading into usual names of columns, or into most."""

    def fit(delimiter: str) -> tuple[bool, int]:
        cells = [cell.strip().strip('"') for cell in heading.split(delimiter)]
        known = usual_column(cells, IMAGE_COLUMNS) is not None or _names_an_image(cells[0])
        return known and len(cells) > 1, len(cells)

    return max(_DELIMITERS, key=fit)


def _names_an_image(cell: str) -> bool:
    """Return whether a cell is a.jpg, or a.jpg#0 as Flickr's numbered captions have it."""
    return posixpath.splitext(re.sub(r"#\d+$", "", cell).lower())[1] in SUFFIXES


def _json_rows(path: Path, bad: list[str]) -> Iterator[tuple[int, Any]]:
    """Yield what should be objects, of a list, of lines, or of a map from image to captions."""
    text = read_text(path)
    if path.suffix.lower() == ".json" or text.lstrip().startswith("["):
        try:
            yield from enumerate(_listed_rows(read_json(path)), start=1)
            return
        except DataError:  # perhaps lines under another suffix
            if not text.lstrip().startswith("{") or "\n" not in text.strip():
                raise
    for line, row in numbered_lines(path):
        try:
            yield line, json.loads(row)
        except (ValueError, RecursionError) as error:
            bad.append(f"{path}, line {line}: not one JSON object ({error})")


def _listed_rows(content: Any) -> list[Any]:
    """Return the rows in the content of a JSON file; none if it is of another layout."""
    if not isinstance(content, dict):
        return content if isinstance(content, list) else []
    lists = {
        name: value
        for name, value in content.items()
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value)
    }
    if len(lists) == 1:  # such as {"annotations": [...]}
        return next(iter(lists.values()))
    if lists and all(name.lower() in SPLIT_NAMES for name in content):
        return [{**row, "split": name} for name, rows in lists.items() for row in rows]
    if lists or not all(map(_is_image_with_captions, content, content.values())):
        return []
    return [
        {"image": name, **(value if isinstance(value, dict) else {"caption": value})}
        for name, value in content.items()
    ]


def _is_image_with_captions(name: str, value: Any) -> bool:
    if isinstance(value, str):  # a name may lack its suffix, but a caption has several words
        return _names_an_image(name) or value.count(" ") > 1
    return isinstance(value, (dict, list))


def read_json(path: Path) -> Any:
    """Read a file of JSON."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not readable as JSON ({error}); get it anew") from error


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield numbers, from 1, and stripped texts of the lines that are not blank."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if text := line.strip():
            yield number, text


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); it must be there") from error


def read_text(path: Path) -> str:
    """Read text in UTF-8, with or without a byte order mark, or in UTF-16 with one."""
    data = read_bytes(path)
    is_utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        return data.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, line {line}: not UTF-8 text; save the file as UTF-8 (Excel's CSV UTF-8)"
        ) from None


def quoted(text: str) -> str:
    """Quote a piece of a file for a message, cut if it is long."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
