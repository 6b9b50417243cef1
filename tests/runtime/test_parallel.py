"""Passes side by side: in order, no more than so many, nothing lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator

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
    passes = parallel_map(lambda _: torch.get_num_threads(), range(3), CPU)
    assert next(passes) == 2
    others = parallel_map(lambda _: torch.get_num_threads(), range(3), CPU)
    assert (next(others), [*passes]) == (2, [2, 2])  # the others do not share what is shared
    assert ([*others], torch.get_num_threads()) == ([before, before], before)


def test_an_error_reaches_the_caller_after_the_results_before_it() -> None:
    results = parallel_map(lambda item: 6 // item, [3, 2, 1, 0, 1, 2], CPU)
    assert [next(results), next(results), next(results)] == [2, 3, 6]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert not [t for t in threading.enumerate() if t.name.startswith("pass_")]


GPU = torch.device("cuda")  # named and never used: what is read for it is read on the CPU


def test_a_gpu_takes_one_item_after_another() -> None:
    main = threading.current_thread().name
    assert list(parallel_map(lambda _: threading.current_thread().name, "ab", GPU)) == [main, main]


def test_for_a_gpu_several_threads_read_ahead_and_results_come_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passes, "available_cores", lambda: 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as `captioner batch` and torchrun do
    all_three = threading.Barrier(3)

    def read(item: int) -> tuple[int, str]:
        all_three.wait(timeout=30)
        return item, threading.current_thread().name

    found = list(prefetch(read, range(12), GPU))
    assert [item for item, _ in found] == list(range(12))
    assert len({name for _, name in found}) == 3
