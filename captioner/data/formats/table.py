"""A table of images and captions: CSV and its kin, JSON lists and maps, JSON lines, Parquet."""

from __future__ import annotations

import ast
import contextlib
import csv
import io
import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captioner.data.image_finder import SUFFIXES
from captioner.data.layouts import SPLIT_NAMES, Annotations, DataFiles, NamedImage, split_name
from captioner.data.text_files import numbered_lines, quoted, read_json, read_text
from captioner.errors import DataError, listed, needs_extra
from captioner.storage import is_url

# Usual names of columns, in the order in which they are chosen.
IMAGE_COLUMNS = (
    "path image image_path image_file image_name filename file_path file img picture img_path "
    "img_name photo images image_id key url image_url name".split()
)
CAPTION_COLUMNS = (
    "caption captions caption_text image_caption text texts description sentence sentences raw "
    "comment title alt alt_text prompt additional_feature conversations".split()
)
MOST_ROWS = 10  # that cannot be read are named one by one
_DELIMITERS = ",\t;|"
_SUFFIXES = (".csv", ".tsv", ".txt", ".token", ".jsonl", ".ndjson", ".json", ".parquet")
_NUMBERED = re.compile(r"(.+\.\w+)#\d+")  # NAME.jpg#0, as Flickr8k and Flickr30k number them
_LIST = re.compile(r"""\[\s*(["']).*\1\s*\]""", re.DOTALL)  # as pandas writes a list of texts
_BEFORE_BLANK = re.compile(rf"(\S+(?:{'|'.join(map(re.escape, SUFFIXES))})(?:#\d+)?) +([^\s,;|].*)")
_FORMULA = tuple("=+-@\t\r")  # before which `--write csv` puts a quote
_COCO_FILE = re.compile(r"(instances|person_keypoints|stuff|panoptic|captions|image_info)_.*\.json")


@dataclass(frozen=True)
class Row:
    """A row of a table; `split` is "" where the row names none."""

    line: int
    image: str
    captions: tuple[str, ...]
    split: str = ""


class Table:
    """The table that the user names, or the only one in the root.

    Several rows of an image are several captions, and a caption may be a list. Several files are
    the splits of one data set if they are called so, as train.csv and val.csv. Ids are positions of
    the images.
    """

    def recognise(self, data: DataFiles) -> str | None:
        tables = [data.relative(path) for path in _tables(data)]
        return f"table {listed(tables)}" if tables else None

    def read(self, data: DataFiles) -> Annotations:
        tables = _tables(data)
        if len(tables) > 1 and not all(map(_split_of_file, tables)):
            raise DataError(
                f"{data.root} holds several tables: {listed(list(map(data.relative, tables)))}; "
                "choose one with --file (data.file in a recipe)"
            )
        named = [(path, _split_of_file(path) if len(tables) > 1 else "") for path in tables]
        return read_tables(data, named)


def read_tables(data: DataFiles, tables: Sequence[tuple[Path, str]]) -> Annotations:
    """Return the images of tables, each with the name of its split, or "" if rows name theirs.

    Raises:
        DataError: A table, or rows of it, cannot be read; names the first rows.
    """
    ids: dict[str, int] = {}
    captions: dict[tuple[str, str], list[str]] = {}
    bad: list[str] = []
    for path, split in tables:
        rows = list(read_rows(path, data.image_column, data.caption_column))
        bad += [str(row) for row in rows if isinstance(row, DataError)]
        good = [row for row in rows if isinstance(row, Row)]
        has_splits = any(row.split for row in good)
        for row in good:
            if has_splits and not row.split:
                bad.append(
                    f"{path}, line {row.line}: the split is empty, but other rows have one; fill it"
                )
            name = without_guard(row.image, path.parent)
            name = name if is_url(name) else posixpath.normpath(name)
            ids.setdefault(name, len(ids))
            captions.setdefault((name, split or row.split), []).extend(row.captions)
    if bad:
        more = f"; {len(bad)} rows in all cannot be read" if bad[1:] else ""
        raise DataError("; ".join(bad[:MOST_ROWS]) + more)
    images = [
        NamedImage(name, tuple(texts), ids[name], split)
        for (name, split), texts in captions.items()
    ]
    folders = dict.fromkeys(path.parent for path, _ in tables)
    return Annotations(images, [*folders, Path()])  # some programs write paths from where they run


def headings(data: DataFiles) -> Iterator[tuple[Path, list[str]]]:
    """Yield the files that would be tables if it were known which columns to read."""
    for path in _possible_tables(data):
        try:
            columns = _columns_of(path)
        except DataError:
            continue
        if len(columns) > 1 and path.suffix.lower() != ".txt":
            yield path, columns


def _tables(data: DataFiles) -> list[Path]:
    """Return the table that the user names, or those in the least deep folder that has any."""
    if data.named_file is not None:
        is_table = data.named_file.suffix.lower() in _SUFFIXES
        return [data.named_file] if is_table and _is_table(data.named_file, data) else []
    found = [path for path in _possible_tables(data) if _is_table(path, data)]
    least = min((len(path.parts) for path in found), default=0)
    return [path for path in found if len(path.parts) == least]


def _possible_tables(data: DataFiles) -> list[Path]:
    """Return the files that may be tables: not the text of an image or of a tar file."""
    if data.named_file is not None:
        return [data.named_file]
    stems = {path.with_suffix("") for path in data.tree.images}
    tars = {path.with_suffix("") for path in data.tree.others if path.suffix == ".tar"}
    folders = {path.parent for path in data.tree.images}
    return [
        path
        for path in data.tree.others
        if path.suffix.lower() in _SUFFIXES
        and path.with_suffix("") not in stems | tars | folders
        and not path.name.endswith("_stats.json")
        and not _COCO_FILE.fullmatch(path.name)
    ]


def _is_table(path: Path, data: DataFiles) -> bool:
    """Return whether a file has a column of images and one of captions.

    One that is damaged or empty counts too if its suffix says so; reading it tells what is wrong.
    """
    named_so = data.named_file is not None or path.suffix.lower() in (".csv", ".jsonl", ".tsv")
    try:
        columns = _columns_of(path)
    except DataError:
        return named_so
    if not columns:
        return named_so and path.suffix.lower() != ".json"
    return _chosen(columns, data.image_column, data.caption_column) is not None


def _split_of_file(path: Path) -> str:
    """Return the split that a file is named after, as `flickr30k_val.json`, or ""."""
    last = re.split(r"[_.-]", path.stem)[-1].lower()
    return split_name(last) if last in SPLIT_NAMES else ""


def _chosen(
    columns: Sequence[str], image: str | None, caption: str | None
) -> tuple[str, list[str]] | None:
    """Return the column of images and those of captions; the user's choice, or the usual names.

    Columns such as caption_1 and caption_2 are all of captions.
    """
    images = usual_column(columns, [image] if image else IMAGE_COLUMNS)
    if caption:
        first = usual_column(columns, [caption])
        captions = [first] if first is not None else []
    else:
        kind = usual_column(list(map(_unnumbered, columns)), CAPTION_COLUMNS)
        captions = [column for column in columns if _unnumbered(column) == kind]
    return None if images is None or not captions else (images, captions)


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


def _unnumbered(column: str) -> str:
    """Return the name of one of several columns of a kind, such as caption_1 or caption.1."""
    return re.sub(r"[\s_.-]*\d+$", "", column.strip())


def without_guard(name: str, folder: Path) -> str:
    """Return the name of an image without the quote that keeps spreadsheets from computing it."""
    guarded = name.startswith("'") and name[1:].startswith(_FORMULA)
    return name[1:] if guarded and not (folder / name).exists() else name


# ---------------------------------------------------------------------------------------- reading


def read_rows(
    path: Path, image_column: str | None = None, caption_column: str | None = None
) -> Iterator[Row | DataError]:
    """Yield the rows of a table, or what is wrong with a row.

    Raises:
        DataError: The table cannot be read at all, or lacks a column.
    """
    records = table_records(path)
    chosen: tuple[str, list[str]] | None = None
    for line, record in records:
        if isinstance(record, DataError):
            yield record
            continue
        if chosen is None or chosen[0] not in record:
            columns = list(record)
            found = _chosen(columns, image_column, caption_column)
            if found is None and chosen is None:
                raise DataError(
                    f"{path}, line {line}: no columns of images and captions are recognised in "
                    f"{listed(columns)}; name them with --image-column and --caption-column"
                )
            if found is None:
                yield DataError(f"{path}, line {line}: it has no image ({quoted(str(record))})")
                continue
            chosen = found
        image, captions = record[chosen[0]], texts_of([record.get(column) for column in chosen[1]])
        split = next((v for c, v in record.items() if c.strip().lower() == "split"), None) or ""
        if isinstance(image, int) and not isinstance(image, bool):
            image = str(image)
        if isinstance(image, (bytes, dict, list)):
            raise DataError(
                f"{path}: its column {chosen[0]} holds no names of image files, but "
                f"{'a list' if isinstance(image, list) else 'the images themselves'}; write each "
                "image as a file, and a metadata.csv of file_name,text beside them"
            )
        if not isinstance(image, str) or not image.strip():
            yield DataError(f"{path}, line {line}: the image is empty or no text")
        elif captions is None or not isinstance(split, str):
            yield DataError(
                f"{path}, line {line}: expected a text or a list of texts as the caption, not "
                f"{quoted(repr(record.get(chosen[1][0])))}"
            )
        else:
            numbered = _NUMBERED.fullmatch(image.strip())
            yield Row(line, numbered[1] if numbered else image.strip(), captions, split.strip())


def texts_of(cells: Sequence[Any]) -> tuple[str, ...] | None:
    """Return the captions of a row's cells: texts, or lists of texts, also as JSON or Python.

    Of a conversation, as LLaVA's training data have it, the answers are captions.
    """
    found: list[str] = []
    for value in cells:
        if isinstance(value, str) and _LIST.fullmatch(value):
            with contextlib.suppress(ValueError, SyntaxError, RecursionError):
                value = ast.literal_eval(value)
        if isinstance(value, list) and all(isinstance(turn, dict) for turn in value):
            value = [
                turn.get("value") for turn in value if turn.get("from") in ("gpt", "assistant")
            ]
        if isinstance(value, list) and all(isinstance(text, str) for text in value):
            found += value
        elif isinstance(value, str):
            found.append(value)
        elif value is not None:
            return None
    return tuple(filter(str.strip, found)) or ("",)


Record = tuple[int, "Mapping[str, Any] | DataError"]


def table_records(path: Path) -> Iterator[Record]:
    """Yield the line and the cells by column of each row of a table."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _parquet_records(path)
    if suffix in (".json", ".jsonl", ".ndjson"):
        return _json_records(path)
    return _delimited_records(path)


def _columns_of(path: Path) -> list[str]:
    """Return the columns of a table by its first row; of a file that is none, an empty list.

    Raises:
        DataError: It cannot be read.
    """
    for _, record in table_records(path):
        if isinstance(record, DataError):
            raise record
        return list(record)
    return []


def _delimited_records(path: Path) -> Iterator[Record]:
    """Yield the rows of text with cells between commas, tabs, semicolons or pipes.

    A table without a heading has an image first and its caption last, perhaps after a blank.
    """
    text = read_text(path)
    # Excel's first line may name the delimiter; it is left blank to keep the lines' numbers.
    text = re.sub(r'\A"?sep=."?(?=\r?\n)', "", text)
    first = text.strip().partition("\n")[0]
    if _BEFORE_BLANK.fullmatch(first.strip()):
        for line, row in numbered_lines(path):
            match = _BEFORE_BLANK.fullmatch(row)
            wrong = DataError(f"{path}, line {line}: no name, blank and caption: {quoted(row)}")
            yield line, {"image": match[1], "caption": match[2]} if match else wrong
        return
    delimiter = delimiter_of(first)
    start, columns = 1, list[str]()
    # Captions are not always quoted, and may begin with a quote of their own.
    stray = re.compile(rf'(?m)(^|[{delimiter}])"([^"\n]*)"(?=[^"{delimiter}\r\n])')
    has_stray = stray.search(text) is not None
    unquoted = has_stray and delimiter in "\t|"
    if has_stray and not unquoted and not _is_strict_csv(text, delimiter):
        text = stray.sub(r"\1\2", text)
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=delimiter,
        quoting=csv.QUOTE_NONE if unquoted else csv.QUOTE_MINIMAL,
        strict=True,
    )
    try:
        for cells in reader:
            cells = [cell.strip() for cell in cells]
            line, start = start, reader.line_num + 1
            if not any(cells):
                continue
            if not columns:
                if _names_an_image(cells[0]) or _is_sentence(cells):
                    columns = ["image", *(f"column {n}" for n in range(2, len(cells))), "caption"]
                else:
                    columns = _distinct(path, line, cells)
                    continue
            if len(cells) > len(columns) and columns[-1].lower() in CAPTION_COLUMNS:
                last = len(columns) - 1  # a caption with unquoted delimiters
                cells = [*cells[:last], f"{delimiter} ".join(cells[last:])]
            if len(cells) != len(columns):
                yield (
                    line,
                    DataError(
                        f"{path}, line {line}: {len(cells)} cells under a heading of "
                        f"{len(columns)}; put double quotes around a cell that has {delimiter!r}"
                    ),
                )
                continue
            yield line, dict(zip(columns, cells, strict=True))
    except csv.Error as error:
        raise DataError(
            f"{path}, line {start}: not readable as CSV ({error}); check for a stray quote"
        ) from error


def _is_strict_csv(text: str, delimiter: str) -> bool:
    try:
        for _ in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True):
            pass
    except csv.Error:
        return False
    return True


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


def _distinct(path: Path, line: int, columns: list[str]) -> list[str]:
    """Number the columns of captions of one name; refuse two others of one name."""
    lower = [column.lower() for column in columns]
    for index, name in enumerate(lower):
        if not name or name not in lower[:index]:
            continue
        if name not in CAPTION_COLUMNS:
            raise DataError(f"{path}, line {line}: the column {name} is there twice; remove one")
        columns[index] = f"{columns[lower.index(name)]}.{lower[:index].count(name)}"
    return columns


def _json_records(path: Path) -> Iterator[Record]:
    """Yield the rows of JSON lines, or of a list of objects, or of a map from image to captions."""
    text = read_text(path)
    if path.suffix.lower() != ".json" and not text.lstrip().startswith("["):
        yield from _json_lines(path)
        return
    try:
        content = read_json(path)
    except DataError:
        if text.lstrip().startswith("{") and text.strip().count("\n"):  # lines under another suffix
            yield from _json_lines(path)
            return
        raise
    if isinstance(content, dict):
        lists = [value for value in content.values() if _is_list_of_objects(value)]
        if len(lists) == 1:  # such as {"annotations": [...]}
            content = lists[0]
        elif lists and all(name.lower() in SPLIT_NAMES for name in content):
            content = [
                {**row, "split": name}
                for name, rows in content.items()
                for row in rows
                if isinstance(row, dict)
            ]
        elif lists:
            return  # another layout, such as COCO's
        elif all(map(_captions_of_map, content, content.values())):
            content = [_of_map(name, value) for name, value in content.items()]
    if not isinstance(content, list):
        return
    for number, record in enumerate(content, start=1):
        yield number, record if isinstance(record, dict) else _no_object(path, number, record)


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def _captions_of_map(name: str, value: Any) -> bool:
    """Return whether an entry of a JSON object is an image with its captions."""
    if isinstance(value, str):  # a name may lack its suffix, but a caption has several words
        return _names_an_image(name) or value.count(" ") > 1
    return isinstance(value, dict) or (isinstance(value, list) and bool(texts_of([value])))


def _of_map(name: str, value: Any) -> dict[str, Any]:
    """Return an entry of {name: captions} or of {name: {"caption": text}} as a row."""
    return (
        {"image": name, **value} if isinstance(value, dict) else {"image": name, "caption": value}
    )


def _json_lines(path: Path) -> Iterator[Record]:
    for line, text in numbered_lines(path):
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield line, DataError(f"{path}, line {line}: not one JSON object ({error})")
            continue
        yield line, record if isinstance(record, dict) else _no_object(path, line, text)


def _no_object(path: Path, line: int, found: object) -> DataError:
    return DataError(
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
