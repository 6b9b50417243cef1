"""Engines that distribute shards: processes of this machine, or actors of a Ray cluster."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.queues import Queue
from typing import Any

from captioner.batch.inputs import Shard
from captioner.batch.shard import Job, Part, ShardWorker
from captioner.errors import CaptionerError, needs_extra
from captioner.runtime.cores import available_cores
from captioner.runtime.device import may_have_gpu

# Of a process of the pool.
_device = ""
_worker: ShardWorker | None = None


def run_local(job: Job, shards: Sequence[Shard], workers: int | None) -> Iterator[Part]:
    """Process shards in worker processes; yield those that are done, in any order.

    Args:
        job: What to do.
        shards: The photos.
        workers: Number of processes, where one is this one; None starts one for each GPU, or else
            for each core.

    Raises:
        CaptionerError: The output cannot be written, the model cannot be loaded, or a worker ended.
    """
    gpus = _gpus(job)
    workers = min(workers or gpus or available_cores(), len(shards))
    if workers == 1:
        yield from map(ShardWorker(job).run, shards)
        return
    context = multiprocessing.get_context("spawn")
    devices: Queue[str] = context.Queue()
    for number in range(workers):
        # With several GPUs, each worker has one of them.
        devices.put(f"cuda:{number % gpus}" if gpus > 1 else job.device)
    with ProcessPoolExecutor(workers, context, _begin, (devices,)) as pool:
        try:
            for done in as_completed([pool.submit(_run, job, shard) for shard in shards]):
                yield done.result()
        except BrokenProcessPool:
            raise CaptionerError(
                "a worker process was ended, usually because memory is short; run the same command "
                "again with fewer --workers: what is done stays done"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _gpus(job: Job) -> int:
    """Return the number of GPUs on this machine that a job may use."""
    if job.engine == "torch" and job.device in ("auto", "cuda") and may_have_gpu():
        import torch

        return torch.cuda.device_count()
    return int(job.device.startswith("cuda"))


def _begin(devices: Queue[str]) -> None:
    """Prepare a worker process, which ends with its parent and by Ctrl-C."""
    global _device
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _device = devices.get()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(job: Job, shard: Shard) -> Part:
    global _worker
    if _worker is None:
        _worker = ShardWorker(job, _device)
    return _worker.run(shard)


class ShardActor:
    """Holds the model in a worker process of Ray, and loads it for the first shard."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.worker: ShardWorker | None = None

    def run(self, shard: Shard) -> Part:
        self.worker = self.worker or ShardWorker(self.job)
        return self.worker.run(shard)


def run_ray(
    job: Job, shards: Sequence[Shard], workers: int | None, address: str | None
) -> Iterator[Part]:
    """Process shards on Ray; yield those that are done, in any order.

    Ray restarts actors that died and repeats their shards.

    Args:
        job: What to do. Every node must reach the photos, the model and the output by the names
            that it has, and have captioner installed.
        shards: The photos.
        workers: Number of actors; None starts as many as there are free resources for.
        address: Address of the cluster; None starts Ray on this machine for this run.

    Raises:
        CaptionerError: The cluster cannot be reached, is too small or too busy, or as for
            `run_local`.
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
        gpus = job.engine == "torch" and (
            job.device.startswith("cuda")
            or (job.device == "auto" and ray.cluster_resources().get("GPU", 0) >= 1)
        )
        kinds = ["CPU", "GPU"] if gpus else ["CPU"]
        free = {kind: int(ray.available_resources().get(kind, 0)) for kind in kinds}
        size = workers or max(min(free.values()), 1)
        for kind in kinds:  # too many would wait forever, and Ray would not report it
            if size > free[kind]:
                raise CaptionerError(
                    f"{size} workers need {size} {kind}s, but only {free[kind]} of the Ray cluster "
                    "are free; use fewer --workers, or add nodes"
                )
        remote = ray.remote(num_cpus=1, num_gpus=int(gpus), max_restarts=-1, max_task_retries=-1)
        actors = [remote(ShardActor).remote(job) for _ in range(min(size, len(shards)))]
        pool: Any = ActorPool(actors)
        try:
            yield from pool.map_unordered(lambda actor, shard: actor.run.remote(shard), shards)
        except ray.exceptions.RayTaskError as error:  # its own message holds tracebacks
            raise error.cause from None
    finally:
        ray.shutdown()
