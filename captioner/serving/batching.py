"""Requests that ask for the same thing at the same moment go through the model together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, TypeVar

import anyio

Item = TypeVar("Item")
Result = TypeVar("Result")


class Full(Exception):
    """More requests than the server may hold at once."""


class Gate:
    """Counts the requests inside, from their first byte to their answer, and lets in so many.

    Raises:
        Full: on entering, when `limit` are inside.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.inside = limit, 0

    def __enter__(self) -> Gate:
        if self.inside >= self.limit:
            raise Full
        self.inside += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.inside -= 1


@dataclass(eq=False)
class _Job(Generic[Item, Result]):
    key: Hashable
    work: Callable[[Sequence[Item]], Sequence[Result]]
    item: Item
    arrived: float
    answer: asyncio.Future[Result] = field(repr=False)


class Batcher:
    """Passes over up to `max_batch` items of equal key, `passes` at a time, each in a thread.

    A pass begins when `max_batch` items of its key are there, or `wait_s` after the first of them
    came; while all threads are busy, the next one gathers. Where a pass over several items fails,
    each is tried alone, so that nobody's photo fails for another's. An item whose caller has gone
    away is dropped. Callers bound how many wait (see Gate).
    """

    def __init__(
        self,
        *,
        max_batch: int = 16,
        wait_s: float = 0.010,
        passes: int = 1,
        observe: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.max_batch, self.wait_s, self.observe = max_batch, wait_s, observe
        self._waiting: deque[_Job[Any, Any]] = deque()
        self._changed = asyncio.Event()
        self._closing = False
        self._passes = passes
        self._threads = ThreadPoolExecutor(passes, thread_name_prefix="model")
        self._loop: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    async def submit(
        self, key: Hashable, work: Callable[[Sequence[Item]], Sequence[Result]], item: Item
    ) -> Result:
        """The item's own result of `work`, which is the same for all items of a key.

        Raises:
            Full: the batcher is closing.
            Exception: what `work` raised for this item.
        """
        if self._closing:
            raise Full
        if self._loop is None:
            self._loop = asyncio.create_task(self._run())
        running = asyncio.get_running_loop()
        job: _Job[Item, Result] = _Job(key, work, item, running.time(), running.create_future())
        self._waiting.append(job)
        self._changed.set()
        return await job.answer

    async def close(self) -> None:
        """Answer what waits, take nothing new."""
        self._closing = True
        self._changed.set()
        if self._loop is not None:
            await self._loop
        self._threads.shutdown()

    async def _run(self) -> None:
        free = anyio.Semaphore(self._passes)
        async with anyio.create_task_group() as running:
            while True:
                while not self._waiting:
                    if self._closing:
                        return
                    await self._change()
                await free.acquire()  # first: what comes while all are busy goes together
                batch = await self._gathered()
                running.start_soon(self._pass, batch, free)

    async def _gathered(self) -> list[_Job[Any, Any]]:
        first = self._waiting[0]
        end = first.arrived + self.wait_s
        while not self._closing:
            left = end - asyncio.get_running_loop().time()
            if left <= 0 or sum(job.key == first.key for job in self._waiting) >= self.max_batch:
                break
            with anyio.move_on_after(left):
                await self._change()
        wanted = [j for j in self._waiting if j.key == first.key and not j.answer.done()]
        batch = wanted[: self.max_batch]
        taken = set(map(id, batch))
        self._waiting = deque(
            job for job in self._waiting if id(job) not in taken and not job.answer.done()
        )
        return batch

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _pass(self, batch: list[_Job[Any, Any]], free: anyio.Semaphore) -> None:
        try:
            if batch:
                self.observe(len(batch))
                await self._answer(batch)
        finally:
            free.release()

    async def _answer(self, batch: list[_Job[Any, Any]]) -> None:
        running = asyncio.get_running_loop()
        items = [job.item for job in batch]
        results: list[Any] | None = None
        try:
            results = list(await running.run_in_executor(self._threads, batch[0].work, items))
        except Exception as error:  # noqa: BLE001  it belongs to whoever asked
            if len(batch) == 1:
                if not batch[0].answer.done():
                    batch[0].answer.set_exception(error)
                return
        if results is None:
            # One by one, and not above: an error holds on to the memory of the pass that it ended.
            for job in batch:
                await self._answer([job])
            return
        for job, result in zip(batch, results, strict=True):
            if not job.answer.done():
                job.answer.set_result(result)
