"""The work on one shard: the same code in every engine, so that all have the same output."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from captioner.batch.inputs import Row, Shard, is_tar
from captioner.engines import EngineName, Precision
from captioner.errors import ImageError, error_summary
from captioner.storage import Folder, fetch, file_system, is_url

if TYPE_CHECKING:
    from captioner.captioner import Captioner

MAX_EXAMPLES = 20  # failed photos that are named
_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("path", pa.string()),
        ("caption", pa.string()),
        ("confidence", pa.float64()),
        ("log_prob", pa.float64()),
        ("words", pa.list_(pa.string())),
        ("error", pa.string()),
    ]
)
# Maps are flat, with the shape [words, rows, columns] alongside: nested lists are slow to read.
_MAPS = [pa.field("maps", pa.list_(pa.float16())), pa.field("shape", pa.list_(pa.int32()))]


@dataclass(frozen=True)
class Job:
    """The settings of a run that every worker needs.

    Attributes:
        output: Folder or URL that is written to.
        model: Bundled name, or the path of a model folder.
        settings: Digest of all that decides the captions.
        search: Search settings that differ from the model's.
        device, precision, engine: As for `Captioner.from_pretrained`. `run_batch` resolves the
            engine `auto`: another node might choose another one, with other last bits.
    """

    output: str
    model: str | Path
    settings: str = ""
    search: dict[str, Any] = field(default_factory=dict)
    device: str = "auto"
    precision: Precision = "float32"
    engine: EngineName = "auto"
    batch_size: int = 16
    maps: bool = False


@dataclass(frozen=True)
class Part:
    """A shard that is done: its rows, those with an error, and the first of them with reasons."""

    shard: int
    photos: int
    errors: int
    failed: list[tuple[str, str]]


def part_name(shard: int) -> str:
    return f"parts/{shard:06d}.parquet"


def read_part(output: Folder, shard: Shard, settings: str) -> Part | None:
    """Return the part of a shard if it is complete and of these rows and settings, or None."""
    try:
        with output.system.open(output.path(part_name(shard.number)), "rb") as file:
            part = pq.ParquetFile(file)
            facts = json.loads((part.schema_arrow.metadata or {}).get(b"captioner", b"{}"))
            if (facts.get("rows"), facts.get("settings")) != (shard.digest, settings):
                return None
            failed = []
            if facts["errors"]:
                table = part.read(columns=["path", "error"]).to_pylist()
                failed = [(row["path"], row["error"]) for row in table if row["error"] is not None]
            photos = part.metadata.num_rows
            return Part(shard.number, photos, facts["errors"], failed[:MAX_EXAMPLES])
    except (OSError, pa.ArrowInvalid):  # missing, or cut short on a file system without renaming
        return None


class ShardWorker:
    """Does one shard after another with the model, which the first one loads."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @cached_property
    def captioner(self) -> Captioner:
        # One thread per worker: for many small matrix products, two workers with one thread are
        # faster than one with two, and the number of threads changes the last bits of sums.
        os.environ["OMP_NUM_THREADS"] = "1"
        from captioner.captioner import Captioner

        job = self.job
        if job.engine == "torch":
            import torch

            torch.set_num_threads(1)  # torch reads the variable only when it is imported
        return Captioner.from_pretrained(
            job.model, device=job.device, precision=job.precision, engine=job.engine
        )

    def run(self, shard: Shard) -> Part:
        """Caption a shard and write its part.

        Raises:
            CaptionerError: The model cannot be loaded, or the output not be written.
        """
        rows, size = shard.rows, self.job.batch_size
        self.captioner.engine.seed(shard.number)  # for hard attention that samples
        photos = _tar_photos(rows) if is_tar(rows[0][1]) else _photos(rows, size)
        written: list[dict[str, Any]] = []
        while batch := list(islice(photos, size)):
            written += self._caption(batch)
        failed = [(row["path"], row["error"]) for row in written if "error" in row]
        facts = {"rows": shard.digest, "settings": self.job.settings, "errors": len(failed)}
        schema = pa.schema([*_SCHEMA, *(_MAPS if self.job.maps else [])])
        schema = schema.with_metadata({"captioner": json.dumps(facts)})
        file = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(written, schema=schema), file, compression="zstd")
        Folder(self.job.output).write(part_name(shard.number), file.getvalue())
        return Part(shard.number, len(written), len(failed), failed[:MAX_EXAMPLES])

    def _caption(self, batch: list[_Photo]) -> list[dict[str, Any]]:
        """Return the output rows of a batch, in its order."""
        from captioner.runtime.parallel import prefetch

        # A column that a row lacks is null in the part.
        rows: list[dict[str, Any]]
        rows = [{"id": _text(photo.identity), "path": _text(photo.path)} for photo in batch]
        inputs = []
        read = prefetch(self._read, batch, self.captioner.device)
        for row, image in zip(rows, read, strict=True):
            if isinstance(image, ImageError):
                row["error"] = _text(str(image))
            else:
                inputs.append((row, image))
        captions = self.captioner.caption_batch([image for _, image in inputs], **self.job.search)
        for (row, _), caption in zip(inputs, captions, strict=True):
            row["caption"], row["words"] = caption.text, caption.words
            row["confidence"], row["log_prob"] = caption.confidence, caption.log_prob
            if self.job.maps:
                row["maps"] = caption.maps.astype("float16").ravel()
                row["shape"] = list(caption.maps.shape)
        return rows

    def _read(self, photo: _Photo) -> Any:
        """Return the network's input for a photo with its geometry, or the error."""
        if isinstance(photo.source, ImageError):
            return photo.source
        from captioner.data.images import open_image

        try:
            return self.captioner.transform.array(open_image(photo.source))
        except ImageError as error:
            return error


class _Photo(NamedTuple):
    identity: str
    path: str
    source: str | bytes | ImageError  # its path, its file's bytes, or why it cannot be read


def _photos(rows: Iterable[Row], batch_size: int) -> Iterator[_Photo]:
    """Yield photos; those behind URLs are fetched concurrently, a batch at a time."""
    rows = iter(rows)
    while batch := list(islice(rows, batch_size)):
        contents = fetch(path for _, path in batch if is_url(path))
        for identity, path in batch:
            source = contents.get(path, path)
            if isinstance(source, Exception):
                name = type(source).__name__
                source = ImageError(f"cannot be read ({name}: {error_summary(source)})")
            yield _Photo(identity, path, source)


def _tar_photos(rows: Iterable[Row]) -> Iterator[_Photo]:
    """Yield the photos of tar files, read from their beginning to their end.

    The id of `folder/key.jpg` is `folder/key`, as in WebDataset. After the photos of a tar file
    that cannot be read to its end, a photo with that error follows.
    """
    from captioner.data.formats.webdataset import is_image, sample_key

    for _, path in rows:
        try:
            system, name = file_system(path)
            with system.open(name, "rb") as file, tarfile.open(fileobj=file, mode="r|*") as members:
                for member in filter(is_image, members):
                    content = members.extractfile(member)
                    assert content is not None  # an image is a regular file
                    identity, _ = sample_key(member.name)
                    yield _Photo(identity, f"{path}::{member.name}", content.read())
                    members.members = []  # type: ignore[attr-defined]  # keep no names
        except (OSError, tarfile.TarError, EOFError) as error:
            reason = ImageError(f"the tar file cannot be read to its end ({error})")
            yield _Photo(path, path, reason)


def _text(text: str) -> str:
    """Return a text without bytes that are not UTF-8, which paths on Linux may hold."""
    return os.fsencode(text).decode(errors="backslashreplace")
