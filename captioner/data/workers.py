"""Reading the items of a data set in worker processes."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Generator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from captioner.errors import CaptionerError, DataError, error_summary
from captioner.runtime.children import blocked_interrupts
from captioner.runtime.processes import SIGNALS

_JOIN_TIMEOUT_S = 5

Item = TypeVar("Item")


def load_items(
    dataset: Dataset[Item], keys: Sequence[Any], *, workers: int = 0, pin_memory: bool = False
) -> Generator[Item, None, None]:
    """Yield `dataset[key]` for each key, in order; without workers, this process reads."""
    loader = DataLoader(
        dataset,
        batch_size=None,
        sampler=keys,
        num_workers=workers,
        pin_memory=pin_memory,
        prefetch_factor=4 if workers else None,
        # Without a generator of its own, a loader draws from that of dropout, and a resumed run,
        # which makes one loader more, would draw other numbers.
        generator=torch.Generator(),
        worker_init_fn=_ignore_signals,
    )
    items: Any = None
    own = set[BaseProcess]()
    others = set(multiprocessing.active_children())
    # PyTorch's handler of SIGCHLD would raise in the middle of a step when a worker dies, which the
    # loader notices as well.
    child = getattr(signal, "SIGCHLD", None)
    handler = child and signal.getsignal(child)
    try:
        with blocked_interrupts():
            try:
                items = iter(loader)
            finally:
                own = set(multiprocessing.active_children()) - others
        if child is not None and threading.current_thread() is threading.main_thread():
            signal.signal(child, handler or signal.SIG_DFL)
        yield from items
    except CaptionerError as error:  # from a worker, its message is a traceback
        kind = type(error)
        raise kind(str(error).strip().rpartition(f"{kind.__name__}: ")[2]) from None
    except (RuntimeError, OSError, EOFError) as error:
        # PyTorch has no class for the errors of lost workers. An item's tensors are fetched from a
        # worker that may be dead by then: an OSError.
        if not workers:
            raise
        reason = str(error).strip()
        if reason.startswith("Caught "):  # by a worker, or where memory is pinned: a stack trace
            reason = reason.rpartition("\n")[2]
        raise DataError(
            f"processes cannot read photos any more ({error_summary(reason, part='line')}); see "
            "whether memory or open files run out (ulimit -n), lower data.workers (0 reads without "
            "further processes), and go on with --resume"
        ) from None
    finally:
        if workers and items is not None:
            items._shutdown_workers()  # first: a killed one may hold a lock that PyTorch waits for
        for process in own:
            process.kill()  # they ignore the SIGTERM that PyTorch would send
            process.join(_JOIN_TIMEOUT_S)


def _ignore_signals(worker: int) -> None:
    """Leave signals to the main process: a terminal sends them to all, a step waits for workers."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
