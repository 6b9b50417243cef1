"""Worker processes that die, hang, or are interrupted while they start."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable

import pytest
import torch
from torch.utils.data import Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from captioner.data.workers import load_items
from captioner.errors import DataError

MAIN = os.getpid()


class Squares(Dataset[torch.Tensor]):
    """Squares of the keys; in a worker, `harm` is called before that of 5."""

    def __init__(self, harm: Callable[[], None]) -> None:
        self.harm = harm

    def __getitem__(self, key: int) -> torch.Tensor:
        if key == 5 and os.getpid() != MAIN:
            self.harm()
        return torch.tensor(key * key)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise RuntimeError("no shared memory left")


@pytest.mark.parametrize(
    ("harm", "reason"), [(die, "cannot read photos"), (fail, "no shared memory left")]
)
def test_a_worker_that_dies_ends_in_one_sentence_and_no_process_is_left(
    monkeypatch: pytest.MonkeyPatch, harm: Callable[[], None], reason: str
) -> None:
    # PyTorch asks after so many seconds whether its workers live: five are long for a test.
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.2,))
    others = set(multiprocessing.active_children())  # that tests before have left
    found: list[int] = []
    with pytest.raises(DataError, match=rf"{reason}.*data\.workers") as caught:
        found.extend(int(i) for i in load_items(Squares(harm), range(20), workers=2))
    assert found == [n * n for n in range(len(found))]
    assert "\n" not in str(caught.value)
    assert not set(multiprocessing.active_children()) - others


def test_a_process_that_the_caller_starts_meanwhile_lives_on() -> None:
    items = load_items(Squares(fail), range(20), workers=1)
    next(items)
    process = multiprocessing.Process(target=signal.pause, daemon=True)
    process.start()
    items.close()
    assert process.is_alive()
    process.kill()


class Blocked(Dataset[bool]):
    def __getitem__(self, key: int) -> bool:
        return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_no_signal_reaches_a_worker_that_does_not_ignore_it_yet() -> None:
    here = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert list(load_items(Blocked(), range(2), workers=1)) == [True, True]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == here
