"""Reading the items of a data set in worker processes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from captioner.errors import CaptionerError, DataError
from captioner.runtime.signals import ignore_signals, reason_workers_lost, started_workers

HANGS_AFTER_S = 300.0  # without an item of any worker
CHECK_EVERY_S = 5  # for workers that died: PyTorch checks when an item is late

Item = TypeVar("Item")


def load_items(
    dataset: Dataset[Item], keys: Sequence[Any], *, workers: int = 0, pin_memory: bool = False
) -> Iterator[Item]:
    """Yield `dataset[key]` for each key, in order.

    Args:
        dataset: Pickled for the workers.
        workers: Processes that read; 0 reads in this one.

    Raises:
        DataError: A worker died, or all hang.
    """
    loader = DataLoader(
        dataset,
        batch_size=None,
        sampler=keys,
        num_workers=workers,
        pin_memory=pin_memory,
        prefetch_factor=4 if workers else None,
        timeout=CHECK_EVERY_S if workers else 0,
        # Without a generator of its own, a loader draws from that of dropout, and a resumed run,
        # which makes one loader more, would draw other numbers.
        generator=torch.Generator(),
        worker_init_fn=ignore_signals,
    )
    with started_workers(loader) as items:
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
                reason = reason_workers_lost(error)
                if reason is None:
                    raise
                late_s = time.monotonic() - last_s
                if reason.startswith("DataLoader timed out") and late_s < HANGS_AFTER_S:
                    continue
                raise DataError(
                    f"a process that reads photos was lost ({reason}); see whether memory or open "
                    "files run out (ulimit -n), or the disk hangs, lower data.workers (0 reads "
                    "without further processes), and go on with --resume"
                ) from None
            yield item
            last_s = time.monotonic()
