"""Worker processes that die, hang, or are interrupted while they start."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

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


def test_a_worker_that_dies_ends_in_one_sentence_and_no_process_is_left() -> None:
    others = set(multiprocessing.active_children())  # that tests before have left
    found: list[int] = []
    with pytest.raises(DataError, match=r"data\.workers") as caught:
        found.extend(int(i) for i in load_items(Squares(die), range(20), workers=2))
    assert found == [n * n for n in range(len(found))]
    assert "\n" not in str(caught.value)
    assert not set(multiprocessing.active_children()) - others


def refuse() -> None:
    raise DataError("a: b cannot be read; mend it")


def test_what_a_worker_refuses_is_its_sentence_alone() -> None:
    with pytest.raises(DataError) as caught:
        list(load_items(Squares(refuse), [5], workers=1))
    assert str(caught.value) == "a: b cannot be read; mend it"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_workers_start_comes_once_they_have(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Sent to the workers too, as a terminal does; a worker that just forked printed a traceback."""
    started: list[int] = []
    start = multiprocessing.process.BaseProcess.start

    def slow_start(process: multiprocessing.process.BaseProcess) -> None:
        start(process)
        started.append(process.pid or 0)
        for pid in (*started, MAIN):
            os.kill(pid, number)
        time.sleep(0.1)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", slow_start)
    before = signal.signal(number, interrupted)
    try:
        items = load_items(Squares(die), range(5), workers=2)
        with pytest.raises(KeyboardInterrupt):
            next(items)
        assert len(started) == 2, "the second worker was not started"
        assert signal.getsignal(number) is interrupted
    finally:
        signal.signal(number, before)
    assert "Traceback" not in capfd.readouterr().err
    for pid in started:
        deadline = time.monotonic() + 10
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            multiprocessing.active_children()  # reaps
            time.sleep(0.01)
        assert not Path(f"/proc/{pid}").exists()
