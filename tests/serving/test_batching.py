"""Requests that go through the model together."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import anyio

from captioner.serving.batching import Batcher


def test_items_that_come_together_go_together_and_each_caller_gets_its_own() -> None:
    sizes: list[int] = []

    def double(items: Sequence[int]) -> list[int]:
        return [2 * item for item in items]

    async def run() -> list[int]:
        batcher = Batcher(max_batch=16, wait_s=0.05, observe=sizes.append)
        answers = await asyncio.gather(*(batcher.submit("k", double, n) for n in range(40)))
        batcher.close()
        return answers

    assert asyncio.run(run()) == [2 * n for n in range(40)]
    assert sizes == [16, 16, 8]


def test_items_that_come_while_a_batch_runs_go_in_the_next() -> None:
    sizes: list[int] = []
    began, go = threading.Event(), threading.Event()

    def work(items: Sequence[int]) -> list[int]:
        began.set()
        assert go.wait(30)
        return list(items)

    async def run() -> None:
        batcher = Batcher(wait_s=0, observe=sizes.append)
        first = asyncio.create_task(batcher.submit("k", work, 0))
        await asyncio.to_thread(began.wait, 30)
        others = [asyncio.create_task(batcher.submit("k", work, n)) for n in range(1, 5)]
        await asyncio.sleep(0.05)
        go.set()
        await asyncio.gather(first, *others)
        batcher.close()

    asyncio.run(run())
    assert sizes == [1, 4]


def test_keys_are_never_mixed_and_passes_never_overlap() -> None:
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
        batcher.close()
        return answers

    assert asyncio.run(run()) == [f"{'AB'[n % 2]}{n}" for n in range(20)]
    assert all(len(keys) == 1 for keys in passes)


def test_an_item_that_fails_fails_alone() -> None:
    def inverse(items: Sequence[int]) -> list[float]:
        return [1 / item for item in items]

    async def run() -> list[float | BaseException]:
        batcher = Batcher(wait_s=0.02)
        answers = await asyncio.gather(
            *(batcher.submit("k", inverse, n) for n in (1, 0, 2)), return_exceptions=True
        )
        batcher.close()
        return answers

    one, failed, two = asyncio.run(run())
    assert (one, two) == (1, 0.5)
    assert isinstance(failed, ZeroDivisionError)


def test_a_cancelled_item_costs_no_pass() -> None:
    seen: list[int] = []

    def work(items: Sequence[int]) -> list[int]:
        seen.extend(items)
        return list(items)

    async def run() -> int:
        batcher = Batcher(max_batch=16, wait_s=0.2)
        with anyio.move_on_after(0.02):
            await batcher.submit("k", work, 1)
        answer = await batcher.submit("k", work, 2)
        batcher.close()
        return answer

    assert asyncio.run(run()) == 2
    assert seen == [2]
