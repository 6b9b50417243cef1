"""Passes over a model side by side, for programs that have much to do."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from itertools import chain, islice
from typing import TypeVar

import torch

PASSES = 2

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def shared_cores(device: torch.device) -> Iterator[int]:
    """Within it, how many passes to have side by side; on a CPU each has its part of the cores.

    Two passes keep two cores busier than one pass over both: much of a search is too small to be
    cut in pieces, and OpenMP's threads spin while they wait, which starves whoever else needs
    their core. Who sets OMP_NUM_THREADS has decided how many threads a pass has.
    """
    if device.type != "cpu":
        yield 1
        return
    cores = os.cpu_count() or 1
    passes = min(PASSES, cores)
    threads = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, cores // passes))
    try:
        yield passes
    finally:
        torch.set_num_threads(threads)


def side_by_side(
    work: Callable[[Item], Result], items: Iterable[Item], device: torch.device
) -> Iterator[Result]:
    """The result of each item, in their order, from several threads that share the cores.

    Items are made in the caller's thread, one ahead of the passes and no more; one alone has all
    cores. What `work` or `items` raises reaches the caller, once what runs has ended.
    """
    items = iter(items)
    first = list(islice(items, 2))
    with shared_cores(device) if len(first) > 1 else nullcontext(1) as passes:
        if passes == 1:
            yield from map(work, chain(first, items))
            return
        pool = ThreadPoolExecutor(passes, thread_name_prefix="pass")
        running: deque[Future[Result]] = deque()
        try:
            for item in chain(first, items):
                running.append(pool.submit(work, item))
                if len(running) > passes:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
