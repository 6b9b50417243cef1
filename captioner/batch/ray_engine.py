"""The engine of a cluster: Ray Data with actors that hold the model."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from captioner.batch.shard import Job, ShardWorker, Statistics
from captioner.engines.speed import bfloat16_speed, warn_if_slower
from captioner.errors import CaptionerError, needs_extra
from captioner.runtime.cores import available_cores


class ShardActor:
    """Holds the model in a worker process of Ray Data and captions the shards that it gets."""

    def __init__(self, job: Job) -> None:
        self.worker = ShardWorker(job)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        done = [self.worker.run(int(shard)) for shard in batch["shard"]]
        return {"statistics": [json.dumps(asdict(statistics)) for statistics in done]}


def run_ray(
    job: Job, shards: Sequence[int], workers: int | None, address: str | None
) -> Iterator[Statistics]:
    """Process shards on Ray; yield the statistics of each one done, in any order.

    Ray restarts actors that died and repeats their shards.

    Args:
        job: What to do. Every node must reach the photos, the model and the output by the names
            that it has, and have captioner installed.
        shards: Numbers of the shards.
        workers: Number of actors; None starts as many as there are free resources for.
        address: Address of the cluster; None starts Ray on this machine for this run.

    Raises:
        CaptionerError: The cluster cannot be reached, is too small or too busy, or as for
            `run_local`.
    """
    with _session(workers, address):
        import ray.data
        from ray.exceptions import RayTaskError

        gpus = job.engine == "torch" and (
            job.device.startswith("cuda")
            or (job.device == "auto" and ray.cluster_resources().get("GPU", 0) >= 1)
        )
        size = min(_actor_count(ray, workers, ["CPU", "GPU"] if gpus else ["CPU"]), len(shards))
        if job.precision == "bfloat16" and not gpus:
            # Measured on a node of the cluster: the driver may be another kind of machine. Ray
            # takes a plain function, which the cached one is not.
            measure: Any = ray.remote(num_cpus=1)(lambda model: bfloat16_speed(model))
            warn_if_slower(ray.get(measure.remote(job.model)))
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
        # One block per shard, so that little work is lost when an actor dies.
        statistics = ray.data.from_items(
            [{"shard": shard} for shard in shards], override_num_blocks=len(shards)
        ).map_batches(
            ShardActor,
            fn_constructor_args=(job,),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=size),
            num_cpus=1,
            num_gpus=1 if gpus else None,
        )
        try:
            for row in statistics.iter_rows():
                yield Statistics(**json.loads(row["statistics"]))
        except RayTaskError as error:
            # Ray's error is also an instance of its cause's class, but its message is a traceback.
            cause: BaseException | None = error
            while cause is not None and (
                isinstance(cause, RayTaskError) or not isinstance(cause, CaptionerError)
            ):
                cause = getattr(cause, "cause", None) or cause.__cause__
            if cause is None:
                raise
            raise cause from None


def has_gpus(address: str) -> bool:
    """Return whether a cluster has GPUs; this machine itself may have none.

    Raises:
        CaptionerError: The cluster cannot be reached.
    """
    with _session(None, address):
        import ray

        return bool(ray.cluster_resources().get("GPU", 0) >= 1)


@contextmanager
def _session(workers: int | None, address: str | None) -> Iterator[None]:
    """Connect to a Ray cluster, or start Ray on this machine, and disconnect at the end."""
    with needs_extra("--engine ray", "batch"):
        import ray
        import ray.data
    options: dict[str, Any] = {}
    if address is not None:
        _check_reachable(address)
    else:
        # With Ray's default of 15, workers would only get the time that other programs leave.
        os.environ.setdefault("RAY_worker_niceness", "0")
        options = {"include_dashboard": False, "num_cpus": workers or available_cores()}
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level=logging.ERROR,
            **options,
        )
    except Exception as error:  # noqa: BLE001  Ray raises Exception itself, too
        raise CaptionerError(f"Ray at {address or 'this machine'}: {error}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Refuse an address where nothing listens: Ray would end the process after a minute."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():  # `auto` and other names that Ray understands
        return
    try:
        socket.create_connection((host.rpartition("/")[2].strip("[]"), int(port)), 10).close()
    except (OSError, OverflowError) as error:
        raise CaptionerError(
            f"the Ray cluster at {address} cannot be reached ({error}); start one with ray start, "
            "or correct --ray-address"
        ) from None


def _actor_count(ray: Any, workers: int | None, kinds: list[str]) -> int:
    """Return how many actors to start, each with one of each kind of resource.

    Too many are refused: they would wait forever, and Ray would not report it.
    """
    free = {kind: int(ray.available_resources().get(kind, 0)) for kind in kinds}
    wanted = workers or max(min(free.values()), 1)
    for kind in kinds:
        if wanted > free[kind]:
            total = int(ray.cluster_resources().get(kind, 0))
            raise CaptionerError(
                f"{wanted} workers need {wanted} {kind}s, but of the Ray cluster's {total} only "
                f"{free[kind]} are free; use fewer --workers, or add nodes"
            )
    return wanted
