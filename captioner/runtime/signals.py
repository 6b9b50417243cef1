"""Signals that end a run, and the worker processes of a DataLoader, which leave them to it."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

JOIN_TIMEOUT_S = 5

# Those that end a run; Windows has no SIGHUP.
SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


def ignore_signals(worker: int) -> None:
    """Leave signals to the main process (`worker_init_fn` of a DataLoader).

    A signal to the whole process group, as a terminal sends, must not kill a worker that a step is
    waiting for.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def started_workers(loader: Iterable[Item]) -> Iterator[Iterator[Item]]:
    """Context with the items of a DataLoader, whose worker processes end with it."""
    before = set(multiprocessing.active_children())
    try:
        with _deferred_signals():
            items = iter(loader)
        yield items
    finally:
        for process in set(multiprocessing.active_children()) - before:
            process.kill()  # they ignore the SIGTERM that PyTorch would send
            process.join(JOIN_TIMEOUT_S)


@contextlib.contextmanager
def _deferred_signals() -> Iterator[None]:
    """Context in which workers start: signals that arrive meanwhile are raised at its end.

    Otherwise a worker that is starting would print a traceback, or be lost track of. PyTorch's
    handler of SIGCHLD, which raises in the middle of a step when a worker dies, is removed: the
    loader notices that as well.
    """
    if threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        yield
        return
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGCHLD)}
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler or signal.SIG_DFL)
        for each in received:
            signal.raise_signal(each)
