"""Caption a collection: divide it into shards, and give those that are not done to an engine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from captioner import __version__
from captioner.batch.inputs import Shard, is_tar, shards_of
from captioner.batch.shard import MAX_EXAMPLES, Job, Part, part_name, read_part
from captioner.checkpoint import MANIFEST, model_folder, verify
from captioner.engines.choice import choose_engine
from captioner.errors import CaptionerError
from captioner.files import locked_folder
from captioner.log import logger, progress_bar
from captioner.storage import Folder, absolute

Engine = Callable[[Job, Sequence[Shard]], Iterator[Part]]

SETTINGS = "settings.json"
SUMMARY = "summary.json"
_LOG_INTERVAL_S = 60.0
_CHECKS = 8  # threads that read the facts of finished parts


@dataclass
class Totals:
    """Sums over finished shards; a photo with an error counts as both."""

    shards: int = 0
    photos: int = 0
    errors: int = 0
    named: int = 0  # failed photos named so far

    def add(self, part: Part) -> None:
        self.shards += 1
        self.photos += part.photos
        self.errors += part.errors
        for path, reason in part.failed[: MAX_EXAMPLES - self.named]:
            logger.warning(f"{path}: {reason}")
            self.named += 1


def run_batch(
    source: str, job: Job, engine: Engine, *, shard_size: int, retry_errors: bool = False
) -> Totals:
    """Caption all photos of a source that are not captioned yet.

    Args:
        source: Path, URL or pattern of the photos.
        job: What to do with them; `settings` and `tars` are filled in.
        engine: Processes shards and yields those that are done, in any order.
        shard_size: Photos in a shard.
        retry_errors: Repeat shards with failed photos.

    Returns:
        The sums over all shards, those of earlier runs included.

    Raises:
        CaptionerError: The input, the model or the output cannot be used.
    """
    source = absolute(source)
    model = job.model.absolute() if isinstance(job.model, Path) else job.model
    output = Folder(absolute(job.output))
    with contextlib.ExitStack() as stack:
        if output.is_local:
            remedy = "choose another --output"
            folder = Path(output.root)
            stack.enter_context(locked_folder(folder, name=output.name, remedy=remedy))
        job = replace(job, output=output.name, model=model, tars=is_tar(source))
        job, settings = _settled(output, job, shard_size)
        shards = shards_of(source, shard_size)
        output.write(SETTINGS, json.dumps(settings, indent=1).encode())
        totals = Totals()
        done = _finished(output, shards, job, retry_errors=retry_errors)
        if done:
            logger.info(f"{len(done)} of {len(shards)} shards were done before")
        for part in done.values():
            totals.add(part)
        before, started = totals.photos, time.monotonic()
        todo = [shard for shard in shards if shard.number not in done]
        with progress_bar(total=len(shards), initial=len(done), unit="shard") as bar:
            reported = started
            for part in engine(job, todo) if todo else ():
                totals.add(part)
                bar.update()
                bar.set_postfix(photos=totals.photos, failed=totals.errors, refresh=False)
                if bar.disable and time.monotonic() - reported >= _LOG_INTERVAL_S:
                    reported = time.monotonic()
                    logger.info(
                        f"{totals.shards} of {len(shards)} shards, {totals.photos} photos, "
                        f"{totals.errors} failed"
                    )
        if totals.errors > totals.named:
            logger.warning(
                f"{totals.errors} photos failed in all; the column error in {output.name}/parts "
                "says why"
            )
        seconds = round(time.monotonic() - started, 3)
        summary = {
            "shards": totals.shards,
            "photos": totals.photos,
            "errors": totals.errors,
            "run": {"photos": totals.photos - before, "seconds": seconds},
            "input": source,
            "settings": settings,
        }
        content = json.dumps(summary, indent=1, ensure_ascii=False)
        # A name that is no text keeps its bytes as JSON's escapes.
        output.write(SUMMARY, content.encode(errors="backslashreplace"))
    return totals


def _settled(output: Folder, job: Job, shard_size: int) -> tuple[Job, dict[str, Any]]:
    """Return the job with its engine and digest, and every setting that decides the output.

    Raises:
        CaptionerError: The output was begun with other settings.
    """
    content = output.read(SETTINGS)
    before: dict[str, Any] | None = None if content is None else json.loads(content)
    engine = job.engine
    if engine == "auto" and before is not None and job.device in ("auto", "cpu"):
        engine = before.get("engine", "torch")  # the last bits of another one would differ
    folder = model_folder(job.model)
    verify(folder)
    graphs, _ = choose_engine(folder, engine=engine, device=job.device, precision=job.precision)
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
    if before is not None:
        before = {"engine": "torch", **before}  # earlier versions left it out
        keys = [key for key in {**before, **settings} if before.get(key) != settings.get(key)]
        if keys:
            named = ", ".join(f"{key} {before.get(key)}, not {settings.get(key)}" for key in keys)
            raise CaptionerError(
                f"{output.name} was begun with other settings ({named}); choose another --output"
            )
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    return replace(job, settings=digest), settings


def _finished(
    output: Folder, shards: list[Shard], job: Job, *, retry_errors: bool
) -> dict[int, Part]:
    """Return the complete parts by shard; remove parts of no shard, as of a longer input before."""
    present = output.names("parts")
    names = {part_name(shard.number).removeprefix("parts/"): shard for shard in shards}
    for name in present - names.keys():
        if re.fullmatch(r"\d{6,}\.parquet", name):
            output.remove(f"parts/{name}")
    with ThreadPoolExecutor(_CHECKS) as pool:
        begun = [shard for name, shard in names.items() if name in present]
        parts = pool.map(lambda shard: read_part(output, shard, job.settings), begun)
        return {part.shard: part for part in parts if part and not (retry_errors and part.errors)}
