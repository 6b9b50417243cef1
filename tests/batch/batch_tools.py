"""Photos and tar files for tests of `captioner batch`, and the rows of its output."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import tiny

PHOTOS = 60  # of the collection


def rows(output: Path) -> list[dict[str, Any]]:
    """All rows of an output, in order."""
    return [
        row
        for part in sorted((output / "parts").iterdir())
        for row in pq.read_table(part).to_pylist()
    ]


def parts(output: Path) -> dict[str, bytes]:
    """The bytes of each part; a worker that ends in the middle leaves a hidden file."""
    return {part.name: part.read_bytes() for part in (output / "parts").glob("[!.]*")}


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def png(number: int) -> bytes:
    return tiny.encoded(tiny.photo(number)[0], "PNG")
