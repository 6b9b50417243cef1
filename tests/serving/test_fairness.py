"""Clients take turns, however much one of them sends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import anyio

from captioner.serving.batching import Batcher
from captioner.serving.fairness import REMEMBERED_CLIENTS, FairSemaphore, Turns


def test_a_client_with_one_task_goes_before_the_second_task_of_another() -> None:
    order: list[str] = []

    async def run() -> None:
        semaphore = FairSemaphore(1)

        async def work(client: str, name: str) -> None:
            async with semaphore.hold(client):
                order.append(name)
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(work("greedy", f"greedy {n}")) for n in range(4)]
        tasks.append(asyncio.create_task(work("modest", "modest")))
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert order == ["greedy 0", "modest", "greedy 1", "greedy 2", "greedy 3"]


def test_a_place_is_never_lost_whenever_its_task_is_cancelled() -> None:
    async def run() -> int:
        semaphore, most, inside = FairSemaphore(2), 0, 0

        async def work(number: int) -> None:
            nonlocal most, inside
            async with semaphore.hold(str(number % 3)):
                inside += 1
                most = max(most, inside)
                try:
                    await asyncio.sleep(0.001)
                finally:
                    inside -= 1

        for steps in range(
            6
        ):  # cancelled before it waits, while it waits, as it gets its place ...
            tasks = [asyncio.create_task(work(n)) for n in range(8)]
            for _ in range(steps):
                await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        with anyio.fail_after(5):
            async with semaphore.hold("a"), semaphore.hold("b"):
                pass
        with anyio.move_on_after(0.01) as third:
            async with semaphore.hold("a"), semaphore.hold("b"), semaphore.hold("c"):
                pass
        assert third.cancelled_caught
        return most

    assert asyncio.run(run()) == 2


def test_one_client_never_holds_all_places() -> None:
    async def run() -> None:
        semaphore = FairSemaphore(3)
        async with semaphore.hold("greedy"), semaphore.hold("greedy"):
            third = asyncio.create_task(semaphore.hold("greedy").__aenter__())
            with anyio.fail_after(5):
                async with semaphore.hold("modest"):
                    assert not third.done()
        with anyio.fail_after(5):
            await third

    asyncio.run(run())


def test_cancelled_work_costs_its_client_no_turn() -> None:
    async def run() -> list[str]:
        semaphore, order = FairSemaphore(1), []

        async def work(client: str) -> None:
            async with semaphore.hold(client):
                order.append(client)

        async with semaphore.hold("other"):
            cancelled = asyncio.create_task(work("a"))
            await asyncio.sleep(0)
            cancelled.cancel()
            tasks = [asyncio.create_task(work(client)) for client in ("other", "a")]
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(run()) == ["a", "other"]


def test_the_clients_that_are_remembered_are_bounded() -> None:
    turns = Turns()
    for number in range(3 * REMEMBERED_CLIENTS):
        turns.serve(str(number))
    assert len(turns._served) == REMEMBERED_CLIENTS


def test_in_batches_a_flood_of_one_client_holds_another_for_one_batch_only() -> None:
    batches: list[list[str]] = []

    def work(items: Sequence[str]) -> Sequence[str]:
        batches.append(list(items))
        return items

    async def run() -> None:
        batcher = Batcher(max_batch=2, wait_s=0)
        flood = [
            asyncio.create_task(batcher.submit("a", work, "flood", client="flood"))
            for _ in range(12)
        ]
        await asyncio.sleep(0)
        alike = batcher.submit("a", work, "alike", client="one")
        other = batcher.submit("b", work, "other", client="two")
        await asyncio.gather(alike, other, *flood)
        await batcher.close()

    asyncio.run(run())
    place = {
        name: next(n for n, b in enumerate(batches) if name in b) for name in ("alike", "other")
    }
    assert max(place.values()) <= 2, batches
