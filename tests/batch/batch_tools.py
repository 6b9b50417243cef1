"""What tests of `captioner batch` read of an output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

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
