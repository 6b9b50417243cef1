"""The work on one shard: the same code in every engine, so that all have the same output."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.batch.plan import PlanReader, Row, rows_digest
from captioner.engines.choice import EngineName, Precision
from captioner.errors import CaptionerError, ImageError
from captioner.storage import MAX_FILE_BYTES, Folder, fetch, file_system, is_url

if TYPE_CHECKING:
    import pyarrow as pa

MAX_EXAMPLES = 20  # failed photos that the statistics of a shard name, as many as a run names
CAREFUL_AFTER = 3  # attempts at a shard that ended their process; then photos are tried first
MAX_ATTEMPTS = 10
# The output's folders with a file for each shard, and the suffix of these files; `attempts` counts
# how often a shard was begun.
SHARD_FOLDERS = {"parts": ".parquet", "statistics": ".json", "attempts": ""}
_TRIAL_S = 60.0  # for reading one photo in a process of its own
_PRELOADED = ["pyarrow.parquet", "captioner.captioner", "captioner.batch.shard"]


@dataclass(frozen=True)
class Job:
    """The settings of a run that every worker needs.

    Attributes:
        output: Folder or URL that is written to.
        model: Bundled name, or the path of a model folder.
        tars: Whether the plan's rows are tar files.
        settings: Digest of all that decides the captions.
        search: Search settings that differ from the model's.
        device, precision, engine: As for `Captioner.from_pretrained`. `run_batch` resolves the
            engine `auto`: another node might choose another one, with other last bits.
        batch_size: Photos that the model sees at once.
        maps: Also write the attention maps.
        retry_errors: Repeat shards with failed photos.
    """

    output: str
    model: str | Path
    tars: bool = False
    settings: str = ""
    search: dict[str, Any] = field(default_factory=dict)
    device: str = "auto"
    precision: Precision = "float32"
    engine: EngineName = "auto"
    batch_size: int = 16
    maps: bool = False
    retry_errors: bool = False


@dataclass(frozen=True)
class Statistics:
    """Facts about a finished shard; written after its part.

    Attributes:
        shard: Number of the shard.
        rows: Digest of its rows in the plan.
        settings: `Job.settings`.
        photos: Rows of the part.
        errors: Rows with an error.
        sha256, bytes: SHA-256 sum and size of the part.
        seconds: Duration of the work.
        examples: Some of the photos that failed, with the reason.
    """

    shard: int
    rows: str
    settings: str
    photos: int
    errors: int
    sha256: str
    bytes: int
    seconds: float
    examples: list[tuple[str, str]]


def worker_context(engine: EngineName) -> Any:
    """Return the multiprocessing context of workers.

    Workers are forked from a server that has imported the slow modules, so they start at once.
    """
    if sys.platform == "win32":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED + (["timm"] if engine == "torch" else []))
    return context


def shard_file(folder: str, shard: int) -> str:
    """Return the name of a shard's file in one of SHARD_FOLDERS."""
    return f"{folder}/{shard:06d}{SHARD_FOLDERS[folder]}"


def verified(output: Folder, shard: int, rows: str, job: Job) -> Statistics | None:
    """Return the statistics of a shard of this job that is done and intact, or None.

    Args:
        rows: Digest of the shard's rows in the plan.
    """
    try:
        found = Statistics(**json.loads(output.read(shard_file("statistics", shard)) or b""))
    except (ValueError, TypeError):  # torn, or of another version
        return None
    if (found.shard, found.rows, found.settings) != (shard, rows, job.settings):
        return None
    if found.errors and job.retry_errors:
        return None
    part = output.read(shard_file("parts", shard))
    if part is None or hashlib.sha256(part).hexdigest() != found.sha256:
        return None
    return found


class ShardWorker:
    """Holds the model and does one shard after another.

    Args:
        job: What to do.
        device: Device to use instead of the job's.

    Raises:
        CaptionerError: The model cannot be loaded.
    """

    def __init__(self, job: Job, device: str | None = None) -> None:
        from captioner.captioner import Captioner

        # One thread per worker: for many small matrix products, two workers with one thread are
        # faster than one with two, and the number of threads changes the last bits of sums.
        os.environ["OMP_NUM_THREADS"] = "1"
        if job.engine == "torch":
            import torch

            torch.set_num_threads(1)  # torch reads the variable only when it is imported
        self.job = job
        self.captioner = Captioner.from_pretrained(
            job.model,
            device=device or job.device,
            precision=job.precision,
            engine=job.engine,
            check_speed=False,  # checked once for all workers
        )
        self.output = Folder(job.output)
        self.plan = PlanReader(self.output)
        self.careful = False

    def run(self, shard: int) -> Statistics:
        """Caption a shard and write its part and then its statistics.

        A shard that is already done is left as it is: the engine may have lost its result.

        A photo that crashes its decoder would end every worker in turn. So attempts are counted,
        and after CAREFUL_AFTER of them each photo is first read in a process of its own; if that
        process ends, the photo's row holds the error.

        Raises:
            CaptionerError: The output cannot be written, or each of many attempts ended its worker.
        """
        started = time.monotonic()
        rows = self.plan.rows(shard)
        digest = rows_digest(rows)
        done = verified(self.output, shard, digest, self.job)
        if done is not None:
            return done
        attempts = shard_file("attempts", shard)
        attempt = int(self.output.read(attempts) or 0) + 1
        if attempt > MAX_ATTEMPTS:
            raise CaptionerError(
                f"shard {shard} ({rows[0][1]} to {rows[-1][1]}) ended {MAX_ATTEMPTS} worker "
                "processes; where memory is short use fewer --workers, or a smaller --batch-size "
                "with another --output"
            )
        self.output.write(attempts, str(attempt).encode())
        self.careful = attempt > CAREFUL_AFTER
        self.captioner.engine.seed(shard)  # for hard attention that samples
        photos = _tar_photos(rows) if self.job.tars else _photos(rows, self.job.batch_size)
        written: list[dict[str, Any]] = []
        while batch := list(islice(photos, self.job.batch_size)):
            written += self._caption(batch)
        part = _parquet(written, maps=self.job.maps)
        failed = [(row["path"], row["error"]) for row in written if "error" in row]
        statistics = Statistics(
            shard=shard,
            rows=digest,
            settings=self.job.settings,
            photos=len(written),
            errors=len(failed),
            sha256=hashlib.sha256(part).hexdigest(),
            bytes=len(part),
            seconds=round(time.monotonic() - started, 3),
            examples=failed[:MAX_EXAMPLES],
        )
        self.output.write(shard_file("parts", shard), part)
        content = json.dumps(asdict(statistics), ensure_ascii=False)
        self.output.write(shard_file("statistics", shard), content.encode())
        self.output.remove(attempts)
        return statistics

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
        from captioner.data.transforms import open_image

        try:
            if isinstance(photo.content, ImageError):
                raise photo.content
            content = photo.path if photo.content is None else photo.content
            if self.careful:
                _try_to_read(content, self.job.engine)
            return self.captioner.transform.array(open_image(content))
        except ImageError as error:
            return error


def _try_to_read(content: str | bytes, engine: EngineName) -> None:
    """Read a photo in another process; an ImageError if a signal or the time limit ends that."""
    process = worker_context(engine).Process(target=_read_alone, args=(content,))
    process.start()
    process.join(_TRIAL_S)
    code = process.exitcode
    process.kill()
    if code is None or code < 0:
        how = f"takes more than {_TRIAL_S:.0f} s" if code is None else f"ends in signal {-code}"
        raise ImageError(f"reading it {how}")


def _read_alone(content: str | bytes) -> None:
    from captioner.data.transforms import open_image

    with contextlib.suppress(ImageError):
        open_image(content)


@dataclass(frozen=True)
class _Photo:
    """A photo; `content` is its file's bytes, an error, or None if it is yet to be read."""

    identity: str
    path: str
    content: bytes | ImageError | None = None


def _photos(rows: Iterable[Row], batch_size: int) -> Iterator[_Photo]:
    """Yield photos; those behind URLs are fetched concurrently, a batch at a time."""
    rows = iter(rows)
    while batch := list(islice(rows, batch_size)):
        contents = fetch(path for _, path in batch if is_url(path))
        for identity, path in batch:
            content = _checked_content(contents[path]) if path in contents else None
            yield _Photo(identity, path, content)


_TOO_LARGE = f"is larger than {MAX_FILE_BYTES >> 20} MiB"


def _checked_content(content: bytes | Exception) -> bytes | ImageError:
    """Return the content of a file; an error if it cannot be read, is empty or is too large."""
    if isinstance(content, FileNotFoundError):
        return ImageError("no such file")
    if isinstance(content, Exception):
        return ImageError(f"cannot be read ({content or type(content).__name__})")
    if len(content) > MAX_FILE_BYTES:
        return ImageError(_TOO_LARGE)
    return content or ImageError("the file is empty")


def _tar_photos(rows: Iterable[Row]) -> Iterator[_Photo]:
    """Yield the photos of tar files, read from their beginning to their end.

    The id of `folder/key.jpg` is `folder/key`, as in WebDataset. After the photos of a tar file
    that cannot be read to its end, a photo with that error follows.
    """
    from captioner.data.tars import is_image, sample_key

    for _, path in rows:
        try:
            system, name = file_system(path)
            with system.open(name, "rb") as file, tarfile.open(fileobj=file, mode="r|*") as members:
                for member in members:
                    if not is_image(member):
                        continue
                    content: bytes | ImageError = ImageError(_TOO_LARGE)
                    if member.size <= MAX_FILE_BYTES:
                        stream = members.extractfile(member)
                        content = _checked_content(stream.read() if stream else b"")
                    identity, _ = sample_key(member.name)
                    yield _Photo(identity, f"{path}::{member.name}", content)
                    members.members = []  # type: ignore[attr-defined]  # keep no names
        except (OSError, tarfile.TarError, EOFError) as error:
            reason = ImageError(f"the tar file cannot be read to its end ({error})")
            yield _Photo(path, path, reason)


def _text(text: str) -> str:
    """Return a text without bytes that are not UTF-8, which paths on Linux may hold."""
    return os.fsencode(text).decode(errors="backslashreplace")


def _parquet(rows: list[dict[str, Any]], *, maps: bool) -> bytes:
    """Return the part with these rows; the same rows give the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: list[tuple[str, pa.DataType]] = [
        ("id", pa.string()),
        ("path", pa.string()),
        ("caption", pa.string()),
        ("confidence", pa.float64()),
        ("log_prob", pa.float64()),
        ("words", pa.list_(pa.string())),
        ("error", pa.string()),
    ]
    if maps:  # flat, with the shape [words, rows, columns] alongside: nested lists are slow to read
        columns += [("maps", pa.list_(pa.float16())), ("shape", pa.list_(pa.int32()))]
    schema = pa.schema(columns)
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), file, compression="zstd")
    return file.getvalue()
