"""Signals that end a run, and the worker processes of a DataLoader, which leave them to it."""

from __future__ import annotations

import contextlib
import multiprocessing
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TypeVar

Item = TypeVar("Item")

JOIN_TIMEOUT_S = 5
# Those that end a run; Windows has no SIGHUP.
SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
# PyTorch has no class for the errors of lost workers.
_LOST = re.compile(
    r"DataLoader (worker \(pid[^.\n]*|timed out)|Too many open files|received 0 items of ancdata"
)


def ignore_signals(worker: int) -> None:
    """Leave signals to the main process (`worker_init_fn` of a DataLoader).

    A signal to the whole process group, as a terminal sends, must not kill a worker that a step is
    waiting for.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
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
def defer_signals() -> Iterator[None]:
    """Context in which to start workers: signals that arrive meanwhile are raised at its end.

    Otherwise a worker that is starting would print a traceback, and this process would lose track
    of workers that it has half started. PyTorch's handler of SIGCHLD, which raises an error when a
    worker dies, even in the middle of a step, is removed: the loader notices that as well.
    """
    if threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        yield
        return
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    child_handler = signal.getsignal(signal.SIGCHLD)
    # Workers, forked or spawned, inherit the blocked signals until they ignore them; the handler
    # is for threads that do not block them.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
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


@contextlib.contextmanager
def started_workers(loader: Iterable[Item]) -> Iterator[Iterator[Item]]:
    """Context with the items of a DataLoader, whose worker processes end with it."""
    before, started = set(multiprocessing.active_children()), set()
    try:
        with defer_signals():
            try:
                items = iter(loader)
            finally:
                started = set(multiprocessing.active_children()) - before
        yield items
    finally:
        for process in started:  # they ignore the SIGTERM that PyTorch would send
            process.kill()
        for process in started:
            process.join(JOIN_TIMEOUT_S)


def reason_workers_lost(error: Exception) -> str | None:
    """Return why a DataLoader's workers must be replaced; None for an error of the data set."""
    lost = _LOST.search(str(error))
    if lost:
        return lost[0]
    # An item's tensors are fetched from its worker, which may be dead by then.
    is_from_dataset = isinstance(error, RuntimeError) or str(error).startswith("Caught ")
    return None if is_from_dataset else type(error).__name__
