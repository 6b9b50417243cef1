"""Requests that go through the model together."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import anyio

from captioner.serving.batching import Batcher


def answers(work: Any, items: Sequence[Any], key: Any = lambda item: "k", **options: Any) -> Any:
    """What each item gets, or its error, when all are submitted at once."""

    async def run() -> list[Any]:
        batcher = Batcher(**options)
        submitted = (batcher.submit(key(item), work, item) for item in items)
        found = await asyncio.gather(*submitted, return_exceptions=True)
        batcher.close()
        assert not batcher._waiting  # keys are options of clients, who may send any
        return found

    return asyncio.run(run())


def test_items_that_come_together_go_together_and_each_caller_gets_its_own() -> None:
    sizes: list[int] = []
    options = {"max_batch": 16, "wait_s": 0.05, "observe": sizes.append}
    found = answers(lambda items: [2 * item for item in items], range(40), **options)
    assert found == [2 * n for n in range(40)]
    assert sizes == [16, 16, 8]


def test_keys_are_never_mixed_and_passes_never_overlap() -> None:
    passes: list[set[str]] = []
    running = threading.Lock()

    def work(items: Sequence[str]) -> list[str]:
        assert running.acquire(blocking=False), "one pass at a time"
        passes.append({item[0] for item in items})
        time.sleep(0.005)
        running.release()
        return [item.upper() for item in items]

    items = [f"{'ab'[n % 2]}{n}" for n in range(20)]
    found = answers(work, items, key=lambda item: item[0], max_batch=4)
    assert found == [item.upper() for item in items]
    assert all(len(keys) == 1 for keys in passes)


def test_the_error_of_a_batch_reaches_its_callers_and_no_others() -> None:
    def work(items: Sequence[int]) -> list[float]:
        return [1 / item for item in items]

    bad, good = answers(work, (0, 2), key=lambda item: item, wait_s=0.02)
    assert isinstance(bad, ZeroDivisionError)
    assert good == 0.5


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


def test_nothing_is_kept_of_a_cancelled_item_that_no_thread_has_taken() -> None:
    async def run() -> None:
        batcher = Batcher(wait_s=0.0)
        end = threading.Event()
        busy = asyncio.create_task(batcher.run_alone(lambda: end.wait(10)))
        for seconds in (0.0, 0.05):  # before it asks for a batch, and after
            with anyio.move_on_after(seconds):
                await batcher.submit("k", list, object())
        assert not batcher._waiting
        end.set()
        await busy
        batcher.close()

    asyncio.run(run())
