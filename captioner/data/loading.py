"""Reading in worker processes that are replaced when they die or hang."""

from __future__ import annotations

import contextlib
import multiprocessing
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from captioner.errors import CaptionerError, DataError
from captioner.log import logger

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # that end a run; Windows has no SIGHUP
HANGS_AFTER_S = 300.0  # without an item of any worker
CHECK_EVERY_S = 5  # for workers that died or hang
MAX_LOSSES = 3  # of workers in a row, without an item between them
# PyTorch has no class for these errors.
_LOST = re.compile(
    r"DataLoader (worker \(pid[^.\n]*|timed out)|Too many open files|received 0 items of ancdata"
)

Item = TypeVar("Item")


def load_items(
    dataset: Dataset[Item],
    keys: Sequence[Any],
    *,
    workers: int = 0,
    pin_memory: bool = False,
    hangs_after_s: float = HANGS_AFTER_S,
) -> Iterator[Item]:
    """Yield `dataset[key]` for each key, in order.

    When a worker process dies or hangs, all of them are replaced and go on at the first key whose
    item has not been yielded; so an item must depend on its key alone.

    Args:
        dataset: Pickled for the workers.
        workers: Processes that read; 0 reads in this one.
        hangs_after_s: Seconds without an item after which the workers count as hanging.

    Raises:
        DataError: Workers were lost `MAX_LOSSES` times in a row.
    """
    done = losses = 0
    while True:
        loader = DataLoader(
            dataset,
            batch_size=None,
            sampler=keys[done:],
            num_workers=workers,
            pin_memory=pin_memory,
            prefetch_factor=4 if workers else None,
            timeout=CHECK_EVERY_S if workers else 0,
            # Without a generator of its own, a loader draws from that of dropout, and a resumed
            # run, which makes one loader more, would draw other numbers.
            generator=torch.Generator(),
            worker_init_fn=_ignore_signals,
        )
        try:
            for item in _iterate(loader, hangs_after_s):
                done += 1
                losses = 0
                yield item
            return
        except _WorkersLost as lost:
            losses += 1
            if losses == MAX_LOSSES:
                raise DataError(
                    f"the processes that read photos were lost {losses} times in a row ({lost}); "
                    "see whether memory or open files run out (ulimit -n), or the disk hangs, and "
                    "lower data.workers (0 reads without further processes)"
                ) from None
            logger.warning(f"a process that reads photos was lost ({lost}) and is replaced")


class _WorkersLost(Exception):
    """Why workers must be replaced."""


def _iterate(loader: DataLoader[Item], hangs_after_s: float) -> Iterator[Item]:
    """Yield the items of a loader.

    Raises:
        _WorkersLost: A worker died, or none yields anything.
    """
    before, started = set(multiprocessing.active_children()), set()
    try:
        with _signals_left_to_this_process():
            try:
                items = iter(loader)
            finally:
                started = set(multiprocessing.active_children()) - before
        last_s = time.monotonic()
        while True:
            try:
                item = next(items)
            except StopIteration:
                return
            except CaptionerError as error:  # from a worker, its message is a traceback
                kind = type(error)
                raise kind(str(error).strip().rpartition(f"{kind.__name__}: ")[2]) from None
            except (RuntimeError, OSError, EOFError) as error:
                lost = _LOST.search(str(error))
                # An item's tensors are fetched from its worker, which may be dead by then.
                is_from_dataset = isinstance(error, RuntimeError) or str(error).startswith(
                    "Caught "
                )
                if is_from_dataset and not lost:
                    raise
                reason = lost[0] if lost else type(error).__name__
                if reason.startswith("DataLoader timed out"):
                    if time.monotonic() - last_s < hangs_after_s:
                        continue
                    reason = f"nothing was read for {hangs_after_s:g} s"
                raise _WorkersLost(reason) from None
            yield item
            last_s = time.monotonic()
    finally:
        for process in started:  # they ignore the SIGTERM that PyTorch would send
            process.kill()
        for process in started:
            process.join(CHECK_EVERY_S)


def _ignore_signals(worker: int) -> None:
    """Leave signals to the main process.

    A signal to the whole process group, as a terminal sends, must not kill a worker that a step is
    waiting for.
    """
    for name in SIGNALS:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    sys.excepthook = _report_unless_disconnected


def _report_unless_disconnected(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Report an exception of a worker's thread, but not that the main process has gone.

    A thread of multiprocessing hands tensors over, and reports so when the main process is killed
    while it receives one.
    """
    if not issubclass(kind, (ConnectionError, EOFError)):
        sys.__excepthook__(kind, error, trace)


@contextlib.contextmanager
def _signals_left_to_this_process() -> Iterator[None]:
    """Context in which to start workers: signals that arrive meanwhile are raised at its end.

    Otherwise a worker that is starting would print a traceback, and this process would lose track
    of workers that it has half started. PyTorch's handler of SIGCHLD, which raises an error when a
    worker dies, even in the middle of a step, is removed: the loader notices that as well.
    """
    if threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        yield
        return
    numbers = [getattr(signal, name) for name in SIGNALS]
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in numbers}
    child_handler = signal.getsignal(signal.SIGCHLD)
    # Workers, forked or spawned, inherit the blocked signals until they ignore them; the handler
    # is for threads that do not block them.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, child_handler or signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # what was blocked comes now
        for number, handler in handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)
        for number in received:
            signal.raise_signal(number)
