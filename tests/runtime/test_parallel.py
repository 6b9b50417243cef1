"""Passes side by side: in order, no more than so many, nothing lost."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

from captioner.runtime import parallel as passes
from captioner.runtime.parallel import parallel_map, prefetch

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_results_come_in_order_from_two_threads_at_once() -> None:
    both = threading.Barrier(2)

    def work(item: int) -> tuple[int, str]:
        both.wait(timeout=30)  # two passes have to meet here
        return item, threading.current_thread().name

    found = list(parallel_map(work, range(10), CPU))
    assert [item for item, _ in found] == list(range(10))
    assert len({name for _, name in found}) == 2


def test_each_pass_has_its_part_of_the_cores_and_one_alone_has_all() -> None:
    before = torch.get_num_threads()
    assert list(parallel_map(lambda _: torch.get_num_threads(), range(3), CPU)) == [2, 2, 2]
    assert torch.get_num_threads() == before
    assert list(parallel_map(lambda _: torch.get_num_threads(), range(1), CPU)) == [before]
    assert list(parallel_map(str, [], CPU)) == []


def test_an_error_reaches_the_caller_after_the_results_before_it() -> None:
    results = parallel_map(lambda item: 6 // item, [3, 2, 1, 0, 1, 2], CPU)
    assert [next(results), next(results), next(results)] == [2, 3, 6]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert not [t for t in threading.enumerate() if t.name.startswith("pass_")]


GPU = torch.device("cuda")  # named and never used: what is read for it is read on the CPU


def test_for_a_gpu_several_threads_read_ahead_and_results_come_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passes, "usable_cores", lambda: 3)
    all_three = threading.Barrier(3)

    def read(item: int) -> tuple[int, str]:
        all_three.wait(timeout=30)
        return item, threading.current_thread().name

    found = list(prefetch(read, range(12), GPU))
    assert [item for item, _ in found] == list(range(12))
    assert len({name for _, name in found}) == 3


POOL = """
import multiprocessing, os, signal, time
from concurrent.futures import ProcessPoolExecutor
from captioner.runtime.parallel import end_with_parent
context = multiprocessing.get_context("forkserver")
pool = ProcessPoolExecutor(1, context, end_with_parent, (signal.SIG_IGN,))
print(pool.submit(os.getpid).result(), flush=True)
time.sleep(60)
"""


def test_a_worker_ends_with_a_parent_that_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", POOL], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert Path(f"/proc/{worker}").exists()
        parent.kill()
    end = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_processes_start_with_interrupts_blocked_until_they_say_what_these_do() -> None:
    here = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(1, context) as pool,
        ProcessPoolExecutor(1, context, passes.end_with_parent, (signal.SIG_IGN,)) as ready,
    ):
        with passes.blocked_interrupts():
            masks = [p.submit(signal.pthread_sigmask, signal.SIG_BLOCK, ()) for p in (pool, ready)]
        assert [signal.SIGINT in mask.result() for mask in masks] == [True, False]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == here
