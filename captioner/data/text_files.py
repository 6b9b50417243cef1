"""Text files of captions: lines, JSON, and tables as CSV or JSONL.

Text is UTF-8, with or without a byte order mark. Whatever cannot be found or read raises DataError
with the file and, where it has lines, the line.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captioner.errors import DataError


@dataclass(frozen=True)
class Row:
    """A row of a table and the line that it begins on; split is "" where the row names none."""

    line: int
    image: str
    captions: tuple[str, ...]
    split: str


def csv_rows(path: Path) -> Iterator[Row]:
    """Rows of a CSV file with a heading of image, caption and perhaps split, in any order."""
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    columns: list[str] = []
    start = 1
    try:
        for cells in reader:
            cells = [cell.strip() for cell in cells]
            line, start = start, reader.line_num + 1
            if not any(cells):
                continue
            if not columns:
                columns = [cell.lower() for cell in cells]
                if not {"image", "caption"} <= set(columns):
                    raise DataError(
                        f"{path}, line {line}: expected a heading with the columns image, caption "
                        f"and perhaps split, separated by commas, not {shown(','.join(cells))}"
                    )
                continue
            if len(cells) != len(columns):
                raise DataError(
                    f"{path}, line {line}: {len(cells)} cells under a heading of {len(columns)}; "
                    "put double quotes around a caption that has commas"
                )
            row = dict(zip(columns, cells, strict=True))
            if not row["image"] or not row["caption"]:
                raise DataError(f"{path}, line {line}: the image or the caption is empty")
            yield Row(line, row["image"], (one_line(row["caption"]),), row.get("split", ""))
    except csv.Error as error:
        raise DataError(
            f"{path}, line {start}: not readable as CSV ({error}); look for a stray quote"
        ) from error


def jsonl_rows(path: Path) -> Iterator[Row]:
    """Rows of a file of one JSON object a line; its caption may be a list of captions."""
    for line, text in numbered_lines(path):
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {line}: not one JSON object ({error})") from error
        row = row if isinstance(row, dict) else {}
        image, captions, split = row.get("image"), row.get("caption"), row.get("split") or ""
        captions = [captions] if isinstance(captions, str) else captions
        if not (
            isinstance(image, str)
            and image.strip()
            and isinstance(split, str)
            and isinstance(captions, list)
            and captions
            and all(isinstance(caption, str) and caption.strip() for caption in captions)
        ):
            raise DataError(
                f'{path}, line {line}: expected {{"image": name, "caption": text or list of texts}}'
                f' and perhaps "split": name, not {shown(text)}'
            )
        yield Row(line, image.strip(), tuple(map(one_line, captions)), split.strip())


def read_json_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not readable as JSON ({error}); get it anew") from error
    if not isinstance(data, dict):
        raise DataError(f"{path} holds no JSON object; it is not a captions file")
    return data


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbers, from 1, and stripped texts of the lines that are not blank."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if text := line.strip():
            yield number, text


def read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); it must be there") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8") from error


def one_line(text: str) -> str:
    """Every run of white space made one space, none at the ends."""
    return " ".join(text.split())


def shown(text: str) -> str:
    """A piece of a file for a message: quoted, and cut where it is long."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def the_captions_file(root: Path, file: str | Path | None, patterns: Iterable[str]) -> Path:
    """`file`, in root or as it stands, or else the one file in root that fits the patterns."""
    if file is not None:
        for path in (root / file, Path(file)):
            if path.is_file():
                return path
        raise DataError(f"the captions file {root / file} does not exist; correct its name")
    found = sorted(path for pattern in patterns for path in root.glob(pattern))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise DataError(
            f"{root} must hold exactly one {' or '.join(patterns)}, but holds {names}; name the "
            "captions file"
        )
    return found[0]


def wildcards(folder: Path, pattern: str) -> list[str]:
    """What the star of the pattern stands for in the folder's file names, sorted."""
    prefix, suffix = pattern.split("*")
    names = (path.name for path in folder.glob(pattern))
    return sorted(name.removeprefix(prefix).removesuffix(suffix) for name in names)
