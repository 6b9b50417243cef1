"""Reading text files of captions, and pieces of the messages about them.

Text is UTF-8, with or without a byte order mark. Whatever cannot be read raises DataError, which
names the file and, where it has lines, the line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from captioner.errors import DataError


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a file of one JSON object."""
    try:
        data = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not readable as JSON ({error}); get it anew") from error
    if not isinstance(data, dict):
        raise DataError(f"{path} holds no JSON object; it is not a captions file")
    return data


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield numbers, from 1, and stripped texts of the lines that are not blank."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if text := line.strip():
            yield number, text


def read_text(path: Path) -> str:
    """Read UTF-8 text, with or without a byte order mark."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); it must be there") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8") from error


def normalize_spaces(text: str) -> str:
    """Make every run of white space one space, and strip the ends."""
    return " ".join(text.split())


def has_words(text: str) -> bool:
    """Return whether a caption has a letter or digit of any script."""
    return any(map(str.isalnum, text))


def quoted(text: str) -> str:
    """Quote a piece of a file for a message, cut if it is long."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def find_captions_file(root: Path, file: str | Path | None, patterns: Iterable[str]) -> Path:
    """Return `file`, in root or as it stands; without one, the only match of patterns in root."""
    if file is not None:
        for path in (root / file, Path(file)):
            if os.path.isfile(path):  # Path.is_file raises for a name that no file can have
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


def matches_of_star(folder: Path, pattern: str) -> list[str]:
    """Return what the star of the pattern stands for in the folder's file names, sorted."""
    prefix, suffix = pattern.split("*")
    names = (path.name for path in folder.glob(pattern))
    return sorted(name.removeprefix(prefix).removesuffix(suffix) for name in names)
