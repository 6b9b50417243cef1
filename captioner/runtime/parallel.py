"""The cores of this machine, parallel passes over a model, and prefetching of images."""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import Protocol, TypeVar

PASSES = 2  # in parallel on a CPU; measured on two cores only
READERS = 8  # threads at most that read images for a GPU
_CGROUP = Path("/sys/fs/cgroup")
_SHARING = threading.Lock()  # held while PyTorch's number of threads is lowered

Item = TypeVar("Item")
Result = TypeVar("Result")


class Device(Protocol):
    """Where an engine computes: a `torch.device`, or the CPU without PyTorch."""

    @property
    def type(self) -> str: ...


def available_cores(cgroup: Path = _CGROUP) -> int:
    """Count the cores by affinity and by the quota of the control group (version 2)."""
    affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        return min(cores, max(1, math.ceil(float(quota) / float(period))))
    except (OSError, ValueError):  # no control groups, or "max"
        return cores


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Count the cores for the threads of this process: those available, or OMP_NUM_THREADS."""
    cores = available_cores(cgroup)
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return min(cores, int(given)) if given.isdecimal() and int(given) else cores


@contextmanager
def shared_cores(device: Device) -> Iterator[int]:
    """Share the threads of a CPU between parallel passes; yields how many passes to run.

    Two passes keep two cores busier than one pass over both: much of a search is too small to be
    cut in pieces, and OpenMP's threads spin while they wait. Exported graphs share the cores by
    themselves: while one pass searches another encodes.
    """
    if type(device).__module__ != "torch":
        yield min(PASSES, usable_cores())
        return
    import torch

    if device.type != "cpu" or not _SHARING.acquire(blocking=False):  # others share the cores
        yield 1
        return
    threads = torch.get_num_threads()
    passes = min(PASSES, threads)
    try:
        torch.set_num_threads(threads // passes)
        yield passes
    finally:
        torch.set_num_threads(threads)
        _SHARING.release()


def parallel_map(
    work: Callable[[Item], Result], items: Iterable[Item], device: Device
) -> Iterator[Result]:
    """Map items to results in their order; on a CPU in several threads that share the cores.

    Items are made in the caller's thread, one ahead of the passes and no more; a single item has
    all cores. Exceptions of `work` or `items` reach the caller once what runs has ended. Work that
    draws at random does not belong here: the threads would draw in another order each time.
    """
    items = iter(items)
    ahead = deque(islice(items, 2))
    # `ahead` is emptied, so that no item outlives its turn.
    items = chain((ahead.popleft() for _ in range(len(ahead))), items)
    with shared_cores(device) if len(ahead) > 1 else nullcontext(1) as passes:
        if passes == 1:
            yield from map(work, items)
        else:
            yield from _in_threads(work, items, threads=passes, ahead=passes)


def prefetch(
    read: Callable[[Item], Result], items: Iterable[Item], device: Device
) -> Iterator[Result]:
    """Read items in their order; for a GPU in several threads, ahead of it.

    One core decodes a hundred or two images a second and would keep a GPU waiting; Pillow decodes
    and resizes outside of Python's lock. On a CPU the passes need the cores, and an item is read
    when the caller needs it.
    """
    # Pillow needs no OMP_NUM_THREADS, which `captioner batch` and torchrun set to 1.
    threads = min(READERS, available_cores())
    if device.type == "cpu" or threads == 1:
        return map(read, items)
    return _in_threads(read, items, threads=threads, ahead=2 * threads)


def _in_threads(
    work: Callable[[Item], Result], items: Iterable[Item], *, threads: int, ahead: int
) -> Iterator[Result]:
    """Yield results in the items' order; at most `ahead` of them are computed in advance."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="pass")
    running: deque[Future[Result]] = deque()
    try:
        for item in items:
            running.append(pool.submit(work, item))
            if len(running) > ahead:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
