"""Caption a collection: plan its shards, skip finished ones, give the others to an engine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from captioner import __version__
from captioner.batch.inputs import Source
from captioner.batch.plan import Plan, write_plan
from captioner.batch.shard import SHARD_FOLDERS, Job, Statistics, shard_file, verified
from captioner.checkpoint import MANIFEST, model_folder, verify
from captioner.engines.choice import choose_engine
from captioner.errors import CaptionerError
from captioner.files import locked_folder, remove_temporary_files
from captioner.log import logger, progress_bar
from captioner.storage import Folder, absolute

Engine = Callable[[Job, Sequence[int]], Iterator[Statistics]]

SETTINGS = "settings.json"
SUMMARY = "summary.json"
MAX_NAMED = 20  # failed photos that are named on stderr
_LOG_INTERVAL_S = 60.0
_CHECKS = 8  # threads that verify finished shards


@dataclass
class Totals:
    """Sums over finished shards.

    Attributes:
        shards, photos, errors: Their numbers; a photo with an error counts as both.
        bytes: Size of the parts.
        worker_seconds: Sum of the durations of the shards.
    """

    shards: int = 0
    photos: int = 0
    errors: int = 0
    bytes: int = 0
    worker_seconds: float = 0.0

    def add(self, statistics: Statistics) -> None:
        self.shards += 1
        self.photos += statistics.photos
        self.errors += statistics.errors
        self.bytes += statistics.bytes
        self.worker_seconds += statistics.seconds


def run_batch(source: Source, job: Job, engine: Engine, *, shard_size: int) -> Totals:
    """Caption all photos of a source that are not captioned yet.

    Args:
        source: The photos.
        job: What to do with them; `settings` and `tars` are filled in.
        engine: Function that processes shards and yields their statistics, in any order.
        shard_size: Photos in a shard.

    Returns:
        The sums over all shards, those of earlier runs included.

    Raises:
        CaptionerError: The input, the model or the output cannot be used.
    """
    source = Source(absolute(source.name))
    model = job.model.absolute() if isinstance(job.model, Path) else job.model
    job = replace(job, output=absolute(job.output), model=model)
    output = Folder(job.output)
    with _locked(output):
        begun_with = _read_settings(output)
        job = replace(job, engine=_engine(job, begun_with))
        settings = _settings(job, shard_size)
        if begun_with is not None:
            _check_settings(output, begun_with, settings)
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
        job = replace(job, settings=digest, tars=source.is_tars)
        plan = write_plan(source, shard_size, output)
        output.write(SETTINGS, json.dumps(settings, indent=1).encode())
        totals, failures = Totals(), Failures()
        found = _verify(output, plan, job)
        todo = [shard for shard in range(len(plan.digests)) if shard not in found]
        if found:
            logger.info(f"{len(found)} of {len(plan.digests)} shards were done before")
        for statistics in found.values():
            totals.add(statistics)
            failures.add(statistics)
        before, started = totals.photos, time.monotonic()
        with _progress(plan, totals, job) as show_progress:
            for statistics in engine(job, todo) if todo else ():
                totals.add(statistics)
                failures.add(statistics)
                show_progress()
        failures.finish(totals.errors, job.output)
        if output.is_local:  # left by workers that were killed while writing
            for folder in SHARD_FOLDERS:
                remove_temporary_files(Path(output.path(folder)), older_than_s=0)
        seconds = time.monotonic() - started
        summary = {
            **vars(totals),
            "worker_seconds": round(totals.worker_seconds, 3),
            "run": {"photos": totals.photos - before, "seconds": round(seconds, 3)},
            "input": source.name,
            "settings": settings,
        }
        content = json.dumps(summary, indent=1, ensure_ascii=False)
        # A name that is no text keeps its bytes as JSON's escapes.
        output.write(SUMMARY, content.encode(errors="backslashreplace"))
    return totals


def _locked(output: Folder) -> contextlib.AbstractContextManager[None]:
    """Return a context that keeps other runs on this machine away from a local folder."""
    if not output.is_local:
        return contextlib.nullcontext()
    return locked_folder(Path(output.root), name=str(output.name), remedy="choose another --output")


def _engine(job: Job, before: dict[str, Any] | None) -> Literal["torch", "runtime"]:
    """Return the engine; for `auto` that of the run that began the output, else the best here."""
    wanted = job.engine
    on_cpu = job.device in ("auto", "cpu") and job.precision == "float32"
    if wanted == "auto" and before is not None and on_cpu:
        wanted = "runtime" if before.get("engine") == "runtime" else "torch"
    folder = model_folder(job.model)
    verify(folder)
    graphs, _ = choose_engine(folder, engine=wanted, device=job.device, precision=job.precision)
    return "torch" if graphs is None else "runtime"


def _settings(job: Job, shard_size: int) -> dict[str, Any]:
    """Return every setting that the written bytes depend on, in readable form."""
    manifest = (model_folder(job.model) / MANIFEST).read_bytes()
    return {
        "captioner": __version__,
        "model": hashlib.sha256(manifest).hexdigest()[:16],
        "precision": job.precision,
        # Left out for torch: earlier versions, which had no other engine, did not write it.
        **({} if job.engine == "torch" else {"engine": job.engine}),
        "batch_size": job.batch_size,
        "shard_size": shard_size,
        "maps": job.maps,
        **job.search,
    }


def _read_settings(output: Folder) -> dict[str, Any] | None:
    """Return the settings that an output was begun with; None for a new output."""
    content = output.read(SETTINGS)
    try:
        return None if content is None else dict(json.loads(content))
    except (ValueError, TypeError):
        raise CaptionerError(
            f"{output.name}/{SETTINGS} is damaged; choose another --output, or remove it if the "
            "settings are the same"
        ) from None


def _check_settings(output: Folder, before: dict[str, Any], settings: dict[str, Any]) -> None:
    """Refuse to mix captions of several models or settings."""
    before, settings = ({"engine": "torch", **each} for each in (before, settings))
    keys = [key for key in {**before, **settings} if before.get(key) != settings.get(key)]
    if keys:
        named = ", ".join(f"{key} {before.get(key)}, not {settings.get(key)}" for key in keys)
        raise CaptionerError(
            f"{output.name} was begun with other settings ({named}); choose another --output"
        )


def _verify(output: Folder, plan: Plan, job: Job) -> dict[int, Statistics]:
    """Return the statistics of finished shards by number; remove files of no shard."""
    count = len(plan.digests)
    with_statistics: set[int] = set()
    for folder in SHARD_FOLDERS:
        for name in sorted(output.names(folder)):
            stem = name.partition(".")[0]
            if not stem.isdigit() or shard_file(folder, int(stem)) != f"{folder}/{name}":
                continue
            if folder == "attempts" or int(stem) >= count:  # the input was longer before
                output.remove(f"{folder}/{name}")
            elif folder == "statistics":
                with_statistics.add(int(stem))
    with ThreadPoolExecutor(_CHECKS) as pool:
        shards = sorted(with_statistics)
        checked = pool.map(lambda k: verified(output, k, plan.digests[k], job), shards)
        return {k: found for k, found in zip(shards, checked, strict=True) if found is not None}


class Failures:
    """Logs some of the photos that failed, and where all of them are listed."""

    def __init__(self) -> None:
        self.named = 0

    def add(self, statistics: Statistics) -> None:
        for path, reason in statistics.examples[: MAX_NAMED - self.named]:
            logger.warning(f"{path}: {reason}")
            self.named += 1

    def finish(self, errors: int, output: str) -> None:
        if errors > self.named:
            logger.warning(
                f"{errors} photos failed in all; the column error in {output}/parts says why"
            )


@contextlib.contextmanager
def _progress(plan: Plan, totals: Totals, job: Job) -> Iterator[Callable[[], None]]:
    """Context with a function that shows how far the totals are.

    That is a bar on a terminal, else a line a minute: photos done, rate and time left.
    """
    unit = "tar file" if job.tars else "photo"

    def done() -> int:
        return totals.shards if job.tars else totals.photos

    initial, started = done(), time.monotonic()
    reported = started
    with progress_bar(total=plan.rows, initial=initial, unit=unit, smoothing=0.05) as bar:

        def update() -> None:
            nonlocal reported
            bar.update(done() - bar.n)
            bar.set_postfix(failed=totals.errors, refresh=False)
            now = time.monotonic()
            if bar.disable and now - reported >= _LOG_INTERVAL_S:
                reported = now
                line = tqdm.format_meter(
                    done(), plan.rows, now - started, initial=initial, ncols=0, unit=unit
                )
                logger.info(f"{line}, failed={totals.errors}")

        yield update
