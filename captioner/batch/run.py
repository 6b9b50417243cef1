"""Caption a collection: divide it into shards, and give those that are not done to an engine.

The work on a shard is the same code in every engine, so that all have the same output.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import multiprocessing
import os
import re
import signal
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import islice
from multiprocessing.queues import Queue
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from captioner import __version__
from captioner.batch.inputs import Row, Shard, is_tar, shards_of
from captioner.checkpoint import MANIFEST, model_folder, verify
from captioner.data.formats.webdataset import is_image, sample_key
from captioner.data.images import open_image
from captioner.engines import EngineName, Precision, choose_engine
from captioner.errors import CaptionerError, ImageError, error_summary, needs_extra
from captioner.log import logger, progress_bar
from captioner.runtime.children import blocked_interrupts, end_with_parent
from captioner.runtime.parallel import available_cores, prefetch
from captioner.storage import Folder, absolute, fetch, file_system, is_url, locked_folder

if TYPE_CHECKING:
    from captioner.captioner import Captioner

SETTINGS, SUMMARY = "settings.json", "summary.json"
MAX_EXAMPLES = 20  # failed photos that are named; the column `error` has all of them
_LOG_INTERVAL_S = 60.0
_CHECKS = 8  # threads that read the facts of finished parts
_COLUMNS = {
    "id": pa.string(),
    "path": pa.string(),
    "caption": pa.string(),
    "confidence": pa.float64(),
    "log_prob": pa.float64(),
    "words": pa.list_(pa.string()),
    "error": pa.string(),
}
# Maps are flat, with the shape [words, rows, columns] alongside: nested lists are slow to read.
_MAPS = {"maps": pa.list_(pa.float16()), "shape": pa.list_(pa.int32())}


@dataclass(frozen=True)
class Job:
    """The settings of a run that every worker needs.

    `run_batch` resolves the engine `auto`: another node might choose one with other last bits.
    """

    output: str  # folder or URL that is written to
    model: str | Path  # bundled name, or the path of a model folder
    settings: str = ""  # digest of all that decides the captions
    search: dict[str, Any] = field(default_factory=dict)  # where it differs from the model's
    device: str = "auto"
    precision: Precision = "float32"
    engine: EngineName = "auto"
    batch_size: int = 16
    maps: bool = False


@dataclass(frozen=True)
class Part:
    """A shard that is done: the number of its photos, and those that failed with their reasons."""

    shard: int
    photos: int
    failed: list[tuple[str, str]]


def part_name(shard: int) -> str:
    return f"parts/{shard:06d}.parquet"


@dataclass
class Totals:
    """Sums over finished shards; a photo with an error counts as both."""

    shards: int = 0
    photos: int = 0
    errors: int = 0

    def add(self, part: Part) -> None:
        for path, reason in part.failed[: max(MAX_EXAMPLES - self.errors, 0)]:
            logger.warning(f"{path}: {reason}")
        self.shards += 1
        self.photos += part.photos
        self.errors += len(part.failed)

    def __str__(self) -> str:
        return f"{self.photos} photos, {self.errors} failed"


def run_batch(
    source: str,
    job: Job,
    engine: Callable[[Job, Sequence[Shard]], Iterator[Part]],
    *,
    shard_size: int,
    image_column: str | None = None,
    retry_errors: bool = False,
) -> Totals:
    """Caption all photos of a source (a path, URL or pattern) that are not captioned yet.

    `engine` works on shards and yields those that are done, in any order. The job's own engine and
    its `settings` are filled in here; `retry_errors` repeats shards with failed photos. Returned
    are the sums over all shards, those of earlier runs included.
    """
    source = absolute(source)
    model = job.model.absolute() if isinstance(job.model, Path) else job.model
    output = Folder(absolute(job.output))
    lock: AbstractContextManager[None] = nullcontext()
    if output.is_local:
        lock = locked_folder(Path(output.root), name=output.name, remedy="choose another --output")
    with lock:
        job = replace(job, output=output.name, model=model)
        job, settings = _settled(output, job, shard_size, source)
        shards = shards_of(source, shard_size, image_column)
        output.write(SETTINGS, json.dumps(settings, indent=1).encode())
        done = _finished(output, shards, job, retry_errors=retry_errors)
        if done:
            logger.info(f"{len(done)} of {len(shards)} shards were done before")
        totals = Totals()
        for part in done.values():
            totals.add(part)
        before = totals.photos
        started = reported = time.monotonic()
        todo = [shard for shard in shards if shard.number not in done]
        with progress_bar(total=len(shards), initial=len(done), unit="shard") as bar:
            for part in engine(job, todo) if todo else ():
                totals.add(part)
                bar.update()
                bar.set_postfix_str(str(totals), refresh=False)
                if bar.disable and time.monotonic() - reported >= _LOG_INTERVAL_S:
                    reported = time.monotonic()
                    logger.info(f"{totals.shards} of {len(shards)} shards, {totals}")
        run = {"photos": totals.photos - before, "seconds": round(time.monotonic() - started, 3)}
        summary = {**asdict(totals), "run": run, "input": source, "settings": settings}
        output.write(SUMMARY, json.dumps(summary, indent=1).encode())
    return totals


def _settled(output: Folder, job: Job, shard_size: int, source: str) -> tuple[Job, dict[str, Any]]:
    """Return the job with its engine and digest, and every setting that decides the output."""
    content = output.read(SETTINGS)
    try:
        # Earlier versions left the engine out.
        before = None if content is None else {"engine": "torch", **json.loads(content)}
    except (ValueError, TypeError):  # damaged, or no object
        before = {}
    if output.names("parts") if before is None else "captioner" not in before:
        raise CaptionerError(
            f"{output.name}/{'parts' if content is None else SETTINGS} is damaged or of another "
            "program, so nothing there was changed; choose another --output"
        )
    engine = job.engine
    if engine == "auto" and before is not None and job.device in ("auto", "cpu"):
        engine = before["engine"]  # the last bits of another one would differ
    folder = model_folder(job.model)
    verify(folder)
    graphs = choose_engine(folder, engine=engine, device=job.device, precision=job.precision)
    job = replace(job, engine="torch" if graphs is None else "runtime")
    settings = {
        "captioner": __version__,
        "model": hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()[:16],
        "precision": job.precision,
        "engine": job.engine,
        "batch_size": job.batch_size,
        "shard_size": shard_size,
        "maps": job.maps,
        **job.search,
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    settings["input"] = source  # parts that are not of it would be removed
    if before is not None:
        before.setdefault("input", source)
        keys = [key for key in {**before, **settings} if before.get(key) != settings.get(key)]
        if keys:
            raise CaptionerError(
                f"{output.name} was begun with another {', '.join(keys)}, as its {SETTINGS} says; "
                "choose another --output"
            )
    return replace(job, settings=digest), settings


def _finished(
    output: Folder, shards: list[Shard], job: Job, *, retry_errors: bool
) -> dict[int, Part]:
    """Return the complete parts by shard; remove parts of no shard, as of a longer input before."""
    present = {f"parts/{name}" for name in output.names("parts")}
    names = {part_name(shard.number): shard for shard in shards}
    for name in present - names.keys():
        if re.fullmatch(r"parts/\d{6,}\.parquet", name):
            output.system.rm_file(output.path(name))
    with ThreadPoolExecutor(_CHECKS) as pool:
        begun = [shard for name, shard in names.items() if name in present]
        parts = pool.map(lambda shard: read_part(output, shard, job.settings), begun)
        return {part.shard: part for part in parts if part and not (retry_errors and part.failed)}


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
            return Part(shard.number, part.metadata.num_rows, failed)
    except (OSError, pa.ArrowInvalid):  # missing, or cut short on a file system without renaming
        return None


def run_local(job: Job, shards: Sequence[Shard], workers: int | None) -> Iterator[Part]:
    """Process shards in worker processes; yield those that are done, in any order.

    One worker is this process; None starts one for each GPU, or else for each core.
    """
    gpus = int(job.device.startswith("cuda"))
    if job.engine == "torch" and job.device in ("auto", "cuda"):
        import torch

        gpus = torch.cuda.device_count()
    workers = min(workers or gpus or available_cores(), len(shards))
    if workers == 1:
        yield from map(ShardWorker(job).run, shards)
        return
    context = multiprocessing.get_context("spawn")
    jobs: Queue[Job] = context.Queue()
    for number in range(workers):
        # With several GPUs, each worker has one of them.
        jobs.put(replace(job, device=f"cuda:{number % gpus}") if gpus > 1 else job)
    with ProcessPoolExecutor(workers, context, _begin, (jobs,)) as pool:
        try:
            with blocked_interrupts():
                parts = [pool.submit(_run, shard) for shard in shards]
            for done in as_completed(parts):
                yield done.result()
        except (KeyboardInterrupt, GeneratorExit):
            for process in multiprocessing.active_children():
                process.kill()  # or those that still start would miss the queue of jobs, and say so
            raise
        except BrokenProcessPool:
            raise CaptionerError(
                "a worker process was ended, usually because memory is short; run the same command "
                "again with fewer --workers: what is done stays done"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


_worker: ShardWorker  # of a process of the pool


def _begin(jobs: Queue[Job]) -> None:
    """Prepare a worker process, which ends with its parent and by Ctrl-C."""
    global _worker
    end_with_parent(signal.SIG_DFL)
    _worker = ShardWorker(jobs.get())


def _run(shard: Shard) -> Part:
    return _worker.run(shard)


def run_ray(
    job: Job, shards: Sequence[Shard], workers: int | None, address: str | None
) -> Iterator[Part]:
    """Process shards on Ray, which repeats those of workers that died; yield those that are done.

    Every node must have captioner, and the photos, the model and the output under their names.
    There are at most as many workers as there are free resources for. Without the `address` of a
    cluster, Ray is started on this machine for this run.
    """
    with needs_extra("--engine ray", "batch"):
        import ray
        from ray.util import ActorPool
    local: dict[str, Any] = {}
    if address is None:
        # With Ray's default of 15, workers would only get the time that other programs leave.
        os.environ.setdefault("RAY_worker_niceness", "0")
        local = {"include_dashboard": False, "num_cpus": workers or available_cores()}
    try:
        ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **local)
    except Exception as error:  # noqa: BLE001  Ray raises Exception itself, too
        raise CaptionerError(f"Ray at {address or 'this machine'}: {error}") from None
    try:
        has_gpu = ray.cluster_resources().get("GPU", 0) >= 1
        on_gpu = job.device.startswith("cuda") or (job.device == "auto" and has_gpu)
        gpus = int(job.engine == "torch" and on_gpu)
        available = ray.available_resources()
        kinds = ["CPU", "GPU"] if gpus else ["CPU"]
        free = int(min(available.get(kind, 0) for kind in kinds))
        if not free:  # workers would wait forever, and Ray would not report it
            raise CaptionerError(f"the Ray cluster has no free {' with a '.join(kinds)}; add nodes")
        size = min(workers or free, free, len(shards))
        remote = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=-1, max_task_retries=-1)
        pool: Any = ActorPool([remote(ShardWorker).remote(job) for _ in range(size)])
        try:
            yield from pool.map_unordered(lambda actor, shard: actor.run.remote(shard), shards)
        except ray.exceptions.RayTaskError as error:  # its own message holds tracebacks
            raise error.cause from None
    finally:
        ray.shutdown()


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
        """Caption a shard and write its part."""
        rows, size = shard.rows, self.job.batch_size
        self.captioner.engine.seed(shard.number)  # for hard attention that samples
        photos = _tar_photos(rows) if is_tar(rows[0][1]) else _photos(rows, size)
        images = prefetch(self._read, photos, self.captioner.device)
        written: list[dict[str, Any]] = []
        while batch := list(islice(images, size)):
            written += self._caption(batch)
        failed = [(row["path"], row["error"]) for row in written if "error" in row]
        facts = {"rows": shard.digest, "settings": self.job.settings, "errors": len(failed)}
        columns = {**_COLUMNS, **(_MAPS if self.job.maps else {})}
        schema = pa.schema(columns, metadata={"captioner": json.dumps(facts)})
        file = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(written, schema=schema), file, compression="zstd")
        Folder(self.job.output).write(part_name(shard.number), file.getvalue())
        return Part(shard.number, len(written), failed)

    def _caption(self, batch: list[tuple[_Photo, Any]]) -> list[dict[str, Any]]:
        """Return the output rows of a batch of photos, each with what `_read` returned for it."""
        # A column that a row lacks is null in the part.
        rows: list[dict[str, Any]] = []
        inputs = []
        for photo, image in batch:
            row: dict[str, Any] = {"id": _text(photo.identity), "path": _text(photo.path)}
            if isinstance(image, ImageError):
                row["error"] = _text(str(image))
            else:
                inputs.append((row, image))
            rows.append(row)
        captions = self.captioner.caption_batch([image for _, image in inputs], **self.job.search)
        for (row, _), caption in zip(inputs, captions, strict=True):
            row["caption"], row["words"] = caption.text, caption.words
            row["confidence"], row["log_prob"] = caption.confidence, caption.log_prob
            if self.job.maps:
                row["maps"] = caption.maps.astype("float16").ravel()
                row["shape"] = list(caption.maps.shape)
        return rows

    def _read(self, photo: _Photo) -> tuple[_Photo, Any]:
        """Return a photo, and the network's input for it with its geometry, or the error."""
        try:
            if isinstance(photo.source, ImageError):
                raise photo.source
            return photo, self.captioner.transform.array(open_image(photo.source))
        except ImageError as error:
            return photo, error


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
