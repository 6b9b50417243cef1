"""Text and JSON files of captions; what cannot be read raises DataError with file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from captioner.errors import DataError


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


def read_text(path: Path) -> str:
    """Read text in UTF-8, with or without a byte order mark, or in UTF-16 with one."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); it must be there") from error
    is_utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = data.decode("utf-16" if is_utf16 else "utf-8-sig")
        place = text.find("\0", 0, 1000)  # of UTF-16 without its mark
        if place < 0:
            return text
    except UnicodeDecodeError as error:
        place = error.start
    line = data.count(b"\n", 0, place) + 1
    raise DataError(
        f"{path}, line {line}: not UTF-8 text; save the file as UTF-8, which Excel calls CSV UTF-8"
    )


def quoted(text: str) -> str:
    """Quote a piece of a file for a message, cut if it is long."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
