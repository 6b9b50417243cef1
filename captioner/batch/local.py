"""The engine of one machine: worker processes, which are replaced when they die."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from captioner.batch.shard import Job, ShardWorker, Statistics, worker_context
from captioner.engines.speed import bfloat16_speed, warn_if_slower
from captioner.errors import CaptionerError
from captioner.runtime.cores import available_cores
from captioner.runtime.device import choose_device, may_have_gpu

MAX_DEATHS = 10  # workers in a row that end before their first shard; then the run gives up


def default_workers(job: Job) -> int:
    """Return how many processes to start: one for each GPU, or else for each core."""
    if job.engine == "torch" and job.device != "cpu" and may_have_gpu():
        import torch

        if torch.cuda.is_available():
            return torch.cuda.device_count() if job.device in ("auto", "cuda") else 1
    return available_cores()


def run_local(job: Job, shards: Sequence[int], workers: int) -> Iterator[Statistics]:
    """Process shards in worker processes; yield the statistics of each one done, in any order.

    A worker has one shard at a time, so no queue builds up. If it dies, another gets its shard.

    Args:
        job: What to do.
        shards: Numbers of the shards.
        workers: Number of processes.

    Raises:
        CaptionerError: The output cannot be written, the model cannot be loaded, or workers keep
            dying.
    """
    if job.precision == "bfloat16" and choose_device(job.device).type == "cpu":
        warn_if_slower(bfloat16_speed(job.model))
    context = worker_context(job.engine)
    todo = deque(shards)
    deaths = 0
    running: dict[Connection, _Worker] = {}
    processes: list[BaseProcess] = []
    numbers = itertools.count()

    def start() -> None:
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, job, next(numbers)))
        process.start()
        processes.append(process)
        theirs.close()
        running[ours] = _Worker(process)

    try:
        for _ in range(min(workers, len(todo))):
            start()
        while running:
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                worker = running[connection]
                try:
                    message = connection.recv()
                except (EOFError, OSError):
                    del running[connection]
                    connection.close()
                    if worker.shard is not None:
                        todo.append(worker.shard)
                    else:
                        deaths += 1
                        _check_deaths(deaths, worker.process)
                    if todo:
                        start()
                    continue
                if isinstance(message, Statistics):
                    yield message
                elif isinstance(message, CaptionerError):
                    raise message
                elif message is not None:
                    raise RuntimeError(f"a worker failed:\n{message}")
                deaths, worker.shard = 0, None
                if todo:
                    worker.shard = todo.popleft()
                    # Where it has died since, its end of the pipe gives the shard back.
                    with contextlib.suppress(OSError):
                        connection.send(worker.shard)
                else:
                    del running[connection]
                    connection.close()
    finally:
        for worker in running.values():
            worker.process.kill()
        for process in processes:  # the others end, because their connection is closed
            process.join()


@dataclass
class _Worker:
    """A worker process and the shard that it works on; None while it has none."""

    process: BaseProcess
    shard: int | None = None


def _check_deaths(deaths: int, process: BaseProcess) -> None:
    """Give up, with a CaptionerError, after MAX_DEATHS workers without a shard."""
    if deaths < MAX_DEATHS:
        return
    process.join()
    code = process.exitcode or 0
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    raise CaptionerError(
        f"{deaths} worker processes in a row ended before their first shard, the last {how}; where "
        "memory is short use fewer --workers"
    )


def _work(connection: Connection, job: Job, number: int) -> None:
    """Process shards until the connection closes, or the parent process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent handles it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        worker = ShardWorker(job, _device(job, number))
        connection.send(None)
        while True:
            connection.send(worker.run(connection.recv()))
    except (EOFError, BrokenPipeError):
        return
    except CaptionerError as error:
        connection.send(error)
    except Exception:  # noqa: BLE001  the parent raises it
        connection.send(traceback.format_exc())


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _device(job: Job, number: int) -> str:
    """Return the device of worker `number`: with several GPUs, each worker has one of them."""
    if job.engine == "torch" and job.device in ("auto", "cuda") and may_have_gpu():
        import torch

        if torch.cuda.device_count() > 1:
            return f"cuda:{number % torch.cuda.device_count()}"
    return job.device
