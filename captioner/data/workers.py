"""Reading the items of a data set in worker processes."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from captioner.errors import CaptionerError, DataError, error_summary
from captioner.runtime.signals import ignore_signals, started_workers

# PyTorch has no class for the errors of lost workers.
_LOST = re.compile("DataLoader worker|Too many open files|received 0 items of ancdata")

Item = TypeVar("Item")


def load_items(
    dataset: Dataset[Item], keys: Sequence[Any], *, workers: int = 0, pin_memory: bool = False
) -> Generator[Item, None, None]:
    """Yield `dataset[key]` for each key, in order.

    Args:
        workers: Processes that read; 0 reads in this one.
    """
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
        worker_init_fn=ignore_signals,
    )
    try:
        with started_workers(loader) as items:
            yield from items
    except CaptionerError as error:  # from a worker, its message is a traceback
        kind = type(error)
        raise kind(str(error).strip().rpartition(f"{kind.__name__}: ")[2]) from None
    except (RuntimeError, OSError, EOFError) as error:
        # An item's tensors are fetched from its worker, which may be dead by then: an OSError.
        from_dataset = isinstance(error, RuntimeError) or str(error).startswith("Caught ")
        if from_dataset and not _LOST.search(str(error)):
            raise
        raise DataError(
            f"a process that reads photos was lost ({error_summary(error, part='line')}); see "
            "whether memory or open files run out (ulimit -n), lower data.workers (0 reads without "
            "further processes), and go on with --resume"
        ) from None
