"""What captioner wrote into a folder: the journal of its captions, and the pictures of them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from captioner.errors import CaptionerError

JOURNAL = "captions.jsonl"
PICTURE_ENDINGS = (".attention.png", ".attention.gif", ".comparison.png", ".matrix.png")


def files_of_others(folder: Path, names: Iterable[str]) -> list[str]:
    """Return a folder's file names in order, without hidden ones and those that captioner wrote."""
    try:
        records = read_journal(folder / JOURNAL)
    except CaptionerError:
        records = {}
    ours = {name for record in records.values() for name in record["pictures"]}
    if records:
        ours.add(JOURNAL)
    drawn = {record["name"] for record in records.values()}

    def is_ours(name: str) -> bool:
        word = re.fullmatch(r"(.+)\.\d\d+-.+\.png", name)  # of whatever caption it had
        is_word = word is not None and word[1] in drawn
        return name.startswith(".") or name in ours or name.endswith(PICTURE_ENDINGS) or is_word

    return sorted(itertools.filterfalse(is_ours, names))


def read_journal(file: Path) -> dict[str, dict[str, Any]]:
    """Return the records of a journal by their photo, without a line that a kill cut short."""
    try:
        lines = file.read_bytes().splitlines() if file.is_file() else []
    except OSError as error:
        raise CaptionerError(f"{file} cannot be read ({error.strerror})") from None
    records: dict[str, dict[str, Any]] = {}
    for line in lines:
        try:
            record = json.loads(line)
            image, *_ = [record[key] for key in ("image", "name", "pictures")]
            records[image] = record
        except (ValueError, LookupError, TypeError):
            if b'{"image": '.startswith(line[:10]) and not line.endswith(b"}"):
                continue
            raise CaptionerError(
                f"{file} is no journal of captioner and stays as it is; choose another --output"
            ) from None
    return records
