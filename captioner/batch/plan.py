"""The fixed shards of a collection: which photos, in which order, in which part of the output.

Folder `plan` of the output holds Parquet files of SHARDS_A_FILE row groups; a row group is a shard.
So a worker reads only the rows of its shard, and no process holds those of all shards.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

from captioner.batch.inputs import Source
from captioner.errors import DataError
from captioner.storage import Folder

if TYPE_CHECKING:
    import pyarrow.parquet as pq

SHARDS_A_FILE = 100

Row = tuple[str, str]  # id, path


@dataclass(frozen=True)
class Plan:
    """The shards of a collection.

    Attributes:
        digests: For each shard the digest of its rows.
        rows: Number of rows, which are photos or tar files.
    """

    digests: list[str]
    rows: int


def write_plan(source: Source, shard_size: int, output: Folder) -> Plan:
    """Divide an input into shards, write their rows into the output, and return the plan.

    The same input gives the same files, so a run that begins again may replace them while workers
    of an earlier run still read them.

    Raises:
        DataError: The input cannot be read, or holds no photos.
        CaptionerError: The plan cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    # As bytes: a path on Linux need not be UTF-8.
    schema = pa.schema([("id", pa.binary()), ("path", pa.binary())])
    digests: list[str] = []
    rows = 0
    shards = _shards(source.rows(), 1 if source.is_tars else shard_size)
    for first in shards:
        content, name = io.BytesIO(), _plan_file(len(digests))
        with pq.ParquetWriter(content, schema) as writer:
            for shard in chain([first], islice(shards, SHARDS_A_FILE - 1)):
                columns = [
                    [os.fsencode(text) for text in texts] for texts in zip(*shard, strict=True)
                ]
                writer.write_table(pa.table(columns, schema=schema), row_group_size=len(shard))
                digests.append(rows_digest(shard))
                rows += len(shard)
        output.write(name, content.getvalue())
    if not rows:
        raise DataError(f"{source.name}: holds no photos")
    return Plan(digests, rows)


class PlanReader:
    """Reads shards of a plan; keeps the file that was read last."""

    def __init__(self, output: Folder) -> None:
        self.output = output
        self._name = ""
        self._file: pq.ParquetFile | None = None

    def rows(self, shard: int) -> list[Row]:
        """Return the rows of a shard."""
        import pyarrow.parquet as pq

        name = _plan_file(shard)
        if self._file is None or name != self._name:
            content = self.output.system.open(self.output.path(name), "rb")
            self._file, self._name = pq.ParquetFile(content), name
        columns = self._file.read_row_group(shard % SHARDS_A_FILE).to_pydict()
        ids, paths = (map(os.fsdecode, columns[name]) for name in ("id", "path"))
        return list(zip(ids, paths, strict=True))


def rows_digest(rows: list[Row]) -> str:
    """Return a digest of a shard's rows."""
    return hashlib.sha256(repr(rows).encode(errors="surrogatepass")).hexdigest()[:16]


def _plan_file(shard: int) -> str:
    """Return the name of the plan's file that holds the rows of a shard."""
    return f"plan/{shard // SHARDS_A_FILE:06d}.parquet"


def _shards(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    while shard := list(islice(rows, size)):
        yield shard
