"""Reading in worker processes that are replaced when they die or hang."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from captioner.errors import CaptionerError, DataError
from captioner.log import logger
from captioner.runtime.signals import ignore_signals, reason_workers_lost, started_workers

HANGS_AFTER_S = 300.0  # without an item of any worker
CHECK_EVERY_S = 5  # for workers that died or hang
MAX_LOSSES = 3  # of workers in a row, without an item between them

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
                    if reason.startswith("DataLoader timed out"):
                        if time.monotonic() - last_s < hangs_after_s:
                            continue
                        reason = f"nothing was read for {hangs_after_s:g} s"
                    break
                done, losses = done + 1, 0
                yield item
                last_s = time.monotonic()
        losses += 1
        if losses == MAX_LOSSES:
            raise DataError(
                f"the processes that read photos were lost {losses} times in a row ({reason}); see "
                "whether memory or open files run out (ulimit -n), or the disk hangs, and lower "
                "data.workers (0 reads without further processes)"
            )
        logger.warning(f"a process that reads photos was lost ({reason}) and is replaced")
