"""Passes over a model side by side, and photos read ahead of them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import TypeVar

import torch

PASSES = 2  # side by side: as many as there were cores to measure on
READERS = 8  # threads at most that read photos for a GPU

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def shared_cores(device: torch.device) -> Iterator[int]:
    """Within it, how many passes to have side by side; on a CPU each has its part of the threads.

    Two passes keep two cores busier than one pass over both: much of a search is too small to be
    cut in pieces, and OpenMP's threads spin while they wait, which starves whoever else needs
    their core. The threads are those that PyTorch would use (OMP_NUM_THREADS, the cores that the
    process may use).
    """
    threads = torch.get_num_threads()
    passes = min(PASSES, threads)
    if device.type != "cpu" or passes == 1:
        yield 1
        return
    torch.set_num_threads(threads // passes)
    try:
        yield passes
    finally:
        torch.set_num_threads(threads)


def parallel_map(
    work: Callable[[Item], Result], items: Iterable[Item], device: torch.device
) -> Iterator[Result]:
    """The result of each item, in their order; on a CPU from several threads that share the cores.

    Items are made in the caller's thread, one ahead of the passes and no more; one alone has all
    cores. What `work` or `items` raises reaches the caller, once what runs has ended. Work that
    draws at random does not belong here: the threads would draw in another order each time.
    """
    items = iter(items)
    ahead = deque(islice(items, 2))
    with shared_cores(device) if len(ahead) > 1 else nullcontext(1) as passes:
        if passes == 1:
            yield from map(work, _all(ahead, items))
            return
        yield from _in_threads(work, _all(ahead, items), threads=passes, ahead=passes)


def prefetch(
    read: Callable[[Item], Result], items: Iterable[Item], device: torch.device
) -> Iterator[Result]:
    """What is read of each item, in their order; for a GPU by several threads, ahead of it.

    One core decodes a hundred or two photos a second and would keep a GPU waiting; Pillow decodes
    and resizes outside Python's lock. On a CPU the cores are the passes' own, and an item is read
    when it is asked for.
    """
    threads = min(READERS, _cores())
    if device.type == "cpu" or threads == 1:
        return map(read, items)
    return _in_threads(read, items, threads=threads, ahead=2 * threads)


def _cores() -> int:
    """Those that the process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_threads(
    work: Callable[[Item], Result], items: Iterable[Item], *, threads: int, ahead: int
) -> Iterator[Result]:
    """Results in the items' order; `ahead` more of them than were taken are made or being made."""
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


def _all(ahead: deque[Item], items: Iterator[Item]) -> Iterator[Item]:
    """Both, one after another; emptied as it goes, so that no item outlives its turn."""
    while ahead:
        yield ahead.popleft()
    yield from items
