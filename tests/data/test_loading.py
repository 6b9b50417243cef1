"""Worker processes that die, hang, or are interrupted while they start."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

from captioner.data import loading
from captioner.data.loading import MAX_LOSSES, load_items
from captioner.errors import DataError

MAIN = os.getpid()


class Squares(Dataset[torch.Tensor]):
    """Squares of the keys; in a worker, `harm` is called first where the file is missing or absent."""

    def __init__(self, place: Path, harm: Callable[[], None], *, once: bool = True) -> None:
        self.place, self.harm, self.once = place, harm, once

    def __getitem__(self, key: int) -> torch.Tensor:
        if key == 5 and os.getpid() != MAIN and not (self.once and self.place.exists()):
            self.place.touch()
            self.harm()
        return torch.tensor(key * key)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    os._exit(3)


def hang() -> None:
    time.sleep(1000)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "CHECK_EVERY_S", 0.2)


@pytest.fixture
def others() -> set[object]:
    """Processes that tests before have left."""
    return set(multiprocessing.active_children())


@pytest.mark.parametrize("harm", [die, leave, hang])
def test_workers_that_are_lost_are_replaced_and_no_item_is_lost_or_repeated(
    harm: Callable[[], None],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    others: set[object],
) -> None:
    dataset = Squares(tmp_path / "harmed", harm)
    items = load_items(dataset, range(20), workers=2, hangs_after_s=2)
    assert [int(item) for item in items] == [n * n for n in range(20)]
    assert capfd.readouterr().err.count("was lost") == 1
    assert not set(multiprocessing.active_children()) - others


def refuse() -> None:
    raise DataError("a: b cannot be read; mend it")


def test_what_a_worker_refuses_is_its_sentence_alone(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        list(load_items(Squares(tmp_path / "harmed", refuse), [5], workers=1))
    assert str(caught.value) == "a: b cannot be read; mend it"


def test_the_death_of_a_worker_does_not_interrupt_the_use_of_an_item(tmp_path: Path) -> None:
    """PyTorch's own handler of SIGCHLD raises anywhere, also between two halves of a step."""
    items = load_items(Squares(tmp_path / "harmed", die), range(20), workers=2)
    next(items)
    deadline = time.monotonic() + 30
    while not (tmp_path / "harmed").exists():
        assert time.monotonic() < deadline, "nobody died"
        time.sleep(0.01)
    for _ in range(50):  # it dies now
        time.sleep(0.01)
    assert len(list(items)) == 19


@pytest.mark.parametrize("harm", [die, hang])
def test_workers_that_are_lost_again_and_again_end_in_one_sentence(
    harm: Callable[[], None],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    others: set[object],
) -> None:
    dataset = Squares(tmp_path / "harmed", harm, once=False)
    items = load_items(dataset, range(20), workers=1, hangs_after_s=1)
    with pytest.raises(DataError, match=r"data\.workers") as caught:
        list(items)
    assert f"{MAX_LOSSES} times in a row" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err.count("is replaced") == MAX_LOSSES - 1
    assert not set(multiprocessing.active_children()) - others


class Many(Dataset[list[torch.Tensor]]):
    def __getitem__(self, key: int) -> list[torch.Tensor]:
        return [torch.zeros(8) for _ in range(100)]


def test_a_limit_on_open_files_ends_in_a_sentence_that_names_it() -> None:
    """Each tensor from a worker takes a descriptor, and a worker without one hangs."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, limits[1]))
    try:
        with pytest.raises(DataError, match="ulimit -n"):
            list(load_items(Many(), range(50), workers=2, hangs_after_s=1))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class SlowStart(Dataset[int]):
    """Takes a while to arrive in a worker, as large data does."""

    def __getitem__(self, key: int) -> int:
        return key


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
        items = load_items(SlowStart(), range(20), workers=2)
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


def test_in_another_thread_than_the_main_one_it_works_too() -> None:
    found: list[int] = []
    thread = threading.Thread(
        target=lambda: found.extend(load_items(SlowStart(), range(4), workers=1))
    )
    thread.start()
    thread.join(30)
    assert found == [0, 1, 2, 3]
