"""A table of images and captions, as CSV or JSONL."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from captioner.data.captioned import CaptionedImage, DataFiles, check_splits
from captioner.data.text_files import (
    find_captions_file,
    normalize_spaces,
    numbered_lines,
    quoted,
    read_text,
)
from captioner.errors import DataError

# What other data sets call the splits that captioner asks for.
_OTHER_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def read(data: DataFiles, splits: Sequence[str]) -> list[CaptionedImage]:
    """Read a CSV or JSONL file: `root` itself, `file`, or the only one in root.

    Its columns are image, caption and, optionally, split. Several rows of an image are several
    captions, and in JSONL a caption may be a list. Image paths are relative to the table. Without
    a split column every row belongs to every split. Ids are positions of the images.
    """
    data.refuse("coco_splits")
    path, parsed = _parse(Path(data.root), data.file)
    rows = []
    for row in parsed:
        if isinstance(row, DataError):
            raise row
        rows.append(row)
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
        if not has_splits or row.split in splits:
            captions.setdefault(image, []).extend(row.captions)
    if has_splits:
        check_splits(path, splits, {row.split for row in rows})
    return [CaptionedImage(image, tuple(texts), ids[image]) for image, texts in captions.items()]


def split_counts(root: Path, file: str | Path | None) -> Counter[str]:
    """Return the number of a table's rows by the name of their split; "" where rows name none.

    Raises:
        DataError: No row can be read.
    """
    return Counter(row.split for row in _parse(root, file)[1] if isinstance(row, _Row))


def misspelt_splits(root: Path, file: str | Path | None) -> str | None:
    """Return a sentence about rows whose split is train, val or test by another name, or None.

    Raises:
        DataError: No row can be read.
    """
    counts = split_counts(root, file)
    found = [
        f"{quoted(name)} ({count}), perhaps {quoted(_OTHER_NAMES[name.lower()])}"
        for name, count in counts.items()
        if name.lower() in _OTHER_NAMES and name not in _OTHER_NAMES.values()
    ]
    if not found:
        return None
    return f"rows of these splits are not read: {', '.join(found)}; rename the split"


def row_errors(root: Path, file: str | Path | None) -> list[str]:
    """Return a sentence, with its line, for each row of a table that cannot be read.

    Raises:
        DataError: No row can be read.
    """
    return [str(row) for row in _parse(root, file)[1] if isinstance(row, DataError)]


def table_path(root: Path, file: str | Path | None) -> Path:
    """Return the table's path: `root`, or the table in this folder.

    Raises:
        DataError: The folder holds none, or several of which `file` names none.
    """
    return root if root.is_file() else find_captions_file(root, file, ("*.csv", "*.jsonl"))


def _parse(root: Path, file: str | Path | None) -> tuple[Path, Iterator[_Row | DataError]]:
    """Return the table's path, and its rows or what is wrong with them."""
    path = table_path(root, file)
    kinds = {".csv": _csv_rows, ".jsonl": _jsonl_rows}
    if path.suffix.lower() not in kinds:
        raise DataError(f"the table {path} must be a .csv or .jsonl file")
    return path, kinds[path.suffix.lower()](path)


@dataclass(frozen=True)
class _Row:
    """A row of a table and the line that it begins on; split is "" where the row names none."""

    line: int
    image: str
    captions: tuple[str, ...]
    split: str


def _csv_rows(path: Path) -> Iterator[_Row | DataError]:
    """Yield the rows of a CSV file whose heading has image, caption and, optionally, split."""
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
                        f"and perhaps split, separated by commas, not {quoted(','.join(cells))}"
                    )
                if repeated := [name for name, count in Counter(columns).items() if count > 1]:
                    raise DataError(
                        f"{path}, line {line}: the column {repeated[0]} is there twice; give each "
                        "caption a row of its own"
                    )
                continue
            if len(cells) != len(columns):
                yield DataError(
                    f"{path}, line {line}: {len(cells)} cells under a heading of {len(columns)}; "
                    "put double quotes around a caption that has commas"
                )
                continue
            row = dict(zip(columns, cells, strict=True))
            if not row["image"] or not row["caption"]:
                yield DataError(f"{path}, line {line}: the image or the caption is empty")
                continue
            yield _Row(
                line, row["image"], (normalize_spaces(row["caption"]),), row.get("split", "")
            )
    except csv.Error as error:
        raise DataError(
            f"{path}, line {start}: not readable as CSV ({error}); check for a stray quote"
        ) from error


def _jsonl_rows(path: Path) -> Iterator[_Row | DataError]:
    """Yield the rows of a file of one JSON object a line, whose caption may be a list."""
    for line, text in numbered_lines(path):
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield DataError(f"{path}, line {line}: not one JSON object ({error})")
            continue
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
            yield DataError(
                f'{path}, line {line}: expected {{"image": name, "caption": text or list of texts}}'
                f' and perhaps "split": name, not {quoted(text)}'
            )
            continue
        yield _Row(line, image.strip(), tuple(map(normalize_spaces, captions)), split.strip())
