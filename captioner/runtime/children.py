"""Processes that this one starts: Ctrl-C does to them what they say, and they end with this one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from captioner.runtime.parallel import usable_cores


@contextmanager
def blocked_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back while processes start, or a pool of them ends.

    Before they say what it does to them, they would print a traceback. For this process it comes
    afterwards, also where a thread that does not block it was chosen to get it.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    came, handler = list[int](), signal.getsignal(signal.SIGINT)
    in_main = threading.current_thread() is threading.main_thread() and handler is not None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        if in_main:
            signal.signal(signal.SIGINT, lambda number, _: came.append(number))
        yield
    finally:
        if in_main:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def end_with_parent(on_interrupt: signal.Handlers) -> None:
    """Prepare a worker process: it ends when its parent does, however that ends."""

    def end() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    signal.signal(signal.SIGINT, on_interrupt)
    if hasattr(signal, "pthread_sigmask"):  # blocked when this process was started
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=end, daemon=True).start()


@contextmanager
def child_pool(*preloaded: str) -> Iterator[ProcessPoolExecutor]:
    """Yield a process for each core; Ctrl-C ends this process, which then ends them.

    Modules that are `preloaded` are imported once for all, but on Windows.
    """
    context = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
    if sys.platform != "win32":
        context.set_forkserver_preload([*preloaded])
    pool = ProcessPoolExecutor(usable_cores(), context, end_with_parent, (signal.SIG_IGN,))
    try:
        yield pool
    finally:
        with blocked_interrupts():  # a second Ctrl-C would leave processes that Python waits for
            pool.shutdown(cancel_futures=True)
