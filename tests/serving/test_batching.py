"""Requests that go through the model together."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Sequence

import anyio
import pytest

from captioner.serving.admission import FullError
from captioner.serving.batching import Batcher


def test_what_comes_together_goes_together_and_everybody_gets_their_own() -> None:
    sizes: list[int] = []

    def double(items: Sequence[int]) -> list[int]:
        return [2 * item for item in items]

    async def run() -> list[int]:
        batcher = Batcher(max_batch=16, wait_s=0.05, observe=sizes.append)
        answers = await asyncio.gather(*(batcher.submit("k", double, n) for n in range(40)))
        await batcher.close()
        return answers

    assert asyncio.run(run()) == [2 * n for n in range(40)]
    assert sizes == [16, 16, 8]


def test_a_full_batch_does_not_wait() -> None:
    async def run() -> float:
        batcher = Batcher(max_batch=2, wait_s=30)
        began = time.monotonic()
        await asyncio.gather(*(batcher.submit("k", list, n) for n in range(4)))
        await batcher.close()
        return time.monotonic() - began

    assert asyncio.run(run()) < 15


def test_one_alone_waits_no_longer_than_it_must() -> None:
    async def run() -> float:
        batcher = Batcher(max_batch=16, wait_s=0.2)
        began = time.monotonic()
        await batcher.submit("k", list, 1)
        waited = time.monotonic() - began
        await batcher.close()
        return waited

    assert 0.2 <= asyncio.run(run()) < 10


def test_items_of_different_keys_are_never_mixed_and_passes_never_overlap() -> None:
    passes: list[set[str]] = []
    running = threading.Lock()

    def work(items: Sequence[str]) -> list[str]:
        assert running.acquire(blocking=False), "one pass at a time"
        passes.append({item[0] for item in items})
        time.sleep(0.005)
        running.release()
        return [item.upper() for item in items]

    async def run() -> list[str]:
        batcher = Batcher(max_batch=4, wait_s=0.01)
        items = [f"{'ab'[n % 2]}{n}" for n in range(20)]
        answers = await asyncio.gather(*(batcher.submit(i[0], work, i) for i in items))
        await batcher.close()
        return answers

    assert asyncio.run(run()) == [f"{'AB'[n % 2]}{n}" for n in range(20)]
    assert all(len(keys) == 1 for keys in passes)


def test_a_pass_that_failed_holds_no_memory_while_its_items_are_tried_alone() -> None:
    class Memory:
        pass

    held: list[weakref.ref[Memory]] = []
    alive: list[bool] = []

    def work(items: Sequence[int]) -> list[int]:
        if len(items) > 1:
            memory = Memory()
            held.append(weakref.ref(memory))
            raise MemoryError("too many at once")
        gc.collect()
        alive.append(held[0]() is not None)
        return list(items)

    async def run() -> list[int]:
        batcher = Batcher(max_batch=4, wait_s=0.05)
        answers = await asyncio.gather(*(batcher.submit("k", work, n) for n in range(4)))
        await batcher.close()
        return answers

    assert asyncio.run(run()) == [0, 1, 2, 3]
    assert alive == [False] * 4


def test_one_that_fails_fails_alone() -> None:
    def inverse(items: Sequence[int]) -> list[float]:
        return [1 / item for item in items]

    async def run() -> list[float | BaseException]:
        batcher = Batcher(wait_s=0.02)
        answers = await asyncio.gather(
            *(batcher.submit("k", inverse, n) for n in (1, 0, 2)), return_exceptions=True
        )
        await batcher.close()
        return answers

    one, failed, two = asyncio.run(run())
    assert (one, two) == (1, 0.5)
    assert isinstance(failed, ZeroDivisionError)


def test_who_has_gone_away_costs_no_pass() -> None:
    seen: list[int] = []

    def work(items: Sequence[int]) -> list[int]:
        seen.extend(items)
        return list(items)

    async def run() -> int:
        batcher = Batcher(max_batch=16, wait_s=0.2)
        with anyio.move_on_after(0.02):
            await batcher.submit("k", work, 1)
        answer = await batcher.submit("k", work, 2)
        await batcher.close()
        return answer

    assert asyncio.run(run()) == 2
    assert seen == [2]


def test_closing_answers_what_waits_and_takes_nothing_new() -> None:
    def slow(items: Sequence[int]) -> list[int]:
        time.sleep(0.02)
        return list(items)

    async def run() -> list[int]:
        batcher = Batcher(max_batch=2, wait_s=0.01)
        waiting = [asyncio.create_task(batcher.submit("k", slow, n)) for n in range(9)]
        await asyncio.sleep(0)
        await batcher.close()
        with pytest.raises(FullError):
            await batcher.submit("k", slow, 1)
        return [task.result() for task in waiting]

    assert asyncio.run(run()) == list(range(9))


def test_so_many_passes_at_once_and_no_more() -> None:
    both = threading.Barrier(2)
    at_once, most = 0, 0
    counting = threading.Lock()

    def work(items: Sequence[int]) -> list[int]:
        nonlocal at_once, most
        with counting:
            at_once += 1
            most = max(most, at_once)
        both.wait(timeout=30)  # two passes have to meet here
        with counting:
            at_once -= 1
        return [-item for item in items]

    async def run() -> list[int]:
        batcher = Batcher(max_batch=2, wait_s=0.01, passes=2)
        answers = await asyncio.gather(*(batcher.submit("k", work, n) for n in range(16)))
        await batcher.close()
        return answers

    assert asyncio.run(run()) == [-n for n in range(16)]
    assert most == 2


def test_closing_has_a_deadline_and_drops_what_waits() -> None:
    go = threading.Event()

    def hang(items: Sequence[int]) -> list[int]:
        go.wait(60)
        return list(items)

    async def run() -> tuple[bool, float, list[object]]:
        batcher = Batcher(max_batch=1, wait_s=0)
        waiting = [asyncio.create_task(batcher.submit("k", hang, n)) for n in range(3)]
        await asyncio.sleep(0.1)
        began = time.monotonic()
        finished = await batcher.close(timeout_s=0.2)
        taken = time.monotonic() - began
        go.set()
        return finished, taken, await asyncio.gather(*waiting[1:], return_exceptions=True)

    finished, taken, dropped = asyncio.run(run())
    assert not finished
    assert taken < 10
    assert all(isinstance(error, asyncio.CancelledError) for error in dropped)
