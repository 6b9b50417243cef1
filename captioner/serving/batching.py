"""Run requests with equal settings through the model in one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio

from captioner.serving.admission import FullError
from captioner.serving.fairness import Turns

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(eq=False)
class _Job:
    key: Hashable
    work: Callable[[Sequence[Any]], Sequence[Any]]
    item: Any
    client: str
    arrived_s: float
    result: asyncio.Future[Any]


class Batcher:
    """Collects items of equal key and processes up to `max_batch` of them in one call.

    A batch starts as soon as `max_batch` items of its key have arrived, or `wait_s` after the first
    of them; while all threads are busy, items accumulate for the next one, and clients take turns
    in the places of a batch and in which key is next. Where a batch of several items fails, each
    item is tried alone, so that one bad image fails no other request. An item whose caller was
    cancelled is dropped before it costs anything. Callers limit how many items wait (see
    `admission`).

    Args:
        max_batch: Most items in a batch.
        wait_s: Seconds that the first item waits for others.
        passes: Batches at once, each in a thread of its own.
        observe: Called with the size of each batch.
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
        self._waiting: list[_Job] = []
        self._turns = Turns()
        self._changed = asyncio.Event()
        self._closing = False
        self._passes = passes
        self._threads = ThreadPoolExecutor(passes, thread_name_prefix="model")
        self._scheduler: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    async def submit(
        self,
        key: Hashable,
        work: Callable[[Sequence[Item]], Sequence[Result]],
        item: Item,
        *,
        client: str = "",
    ) -> Result:
        """Return the item's own result of `work`, which must be equivalent for equal keys.

        Raises:
            FullError: The batcher is closing.
            Exception: What `work` raised for this item.
        """
        if self._closing:
            raise FullError
        if self._scheduler is None:
            self._scheduler = asyncio.create_task(self._schedule())
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Result] = loop.create_future()
        self._waiting.append(_Job(key, work, item, client, loop.time(), result))
        self._changed.set()
        return await result

    async def close(self, timeout_s: float | None = None) -> bool:
        """Finish the items that wait and take no new ones.

        Args:
            timeout_s: After this time, items that still wait are dropped, and a batch that still
                runs is left to itself (a thread cannot be ended).
        """
        self._closing = True
        self._changed.set()
        finished = True
        if self._scheduler is not None:
            await asyncio.wait([self._scheduler], timeout=timeout_s)
            finished = self._scheduler.done()
            if not finished:
                self._scheduler.cancel()
                for job in self._waiting:
                    job.result.cancel()
        self._threads.shutdown(wait=finished, cancel_futures=True)
        return finished

    async def _schedule(self) -> None:
        """Start batches while threads are free, until the batcher closes and nothing waits."""
        free_threads = anyio.Semaphore(self._passes)
        async with anyio.create_task_group() as running:
            while True:
                while not self._waiting:
                    if self._closing:
                        return
                    await self._wait_for_change()
                await free_threads.acquire()  # first, so that items accumulate while all are busy
                running.start_soon(self._process, await self._next_batch(), free_threads)

    async def _next_batch(self) -> list[_Job]:
        """Wait until the next batch is full or due; take it from the waiting jobs."""
        first = self._turns.first(self._waiting)
        end_s = first.arrived_s + self.wait_s
        while not self._closing:
            left_s = end_s - asyncio.get_running_loop().time()
            if left_s <= 0 or sum(job.key == first.key for job in self._waiting) >= self.max_batch:
                break
            with anyio.move_on_after(left_s):
                await self._wait_for_change()
        self._waiting = [job for job in self._waiting if not job.result.done()]
        batch: list[_Job] = []
        while len(batch) < self.max_batch and (
            alike := [job for job in self._waiting if job.key == first.key]
        ):
            batch.append(self._turns.first(alike))
            self._waiting.remove(batch[-1])
            self._turns.serve(batch[-1].client)
        return batch

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _process(self, batch: list[_Job], free_threads: anyio.Semaphore) -> None:
        """Run a batch in a thread, then free the thread."""
        try:
            if batch:
                self.observe(len(batch))
                await self._run(batch)
        finally:
            free_threads.release()

    async def _run(self, batch: list[_Job]) -> None:
        """Set the results of a batch; if it fails, run its jobs one by one."""
        batch = [job for job in batch if not job.result.done()]
        if not batch:
            return
        loop = asyncio.get_running_loop()
        items = [job.item for job in batch]
        results: list[Any] | None = None
        try:
            results = list(await loop.run_in_executor(self._threads, batch[0].work, items))
        except Exception as error:  # noqa: BLE001  it is raised where the item was submitted
            if len(batch) == 1:
                if not batch[0].result.done():
                    batch[0].result.set_exception(error)
                return
        if results is None:
            # Not inside the except clause, where the error keeps the failed batch's memory alive.
            for job in batch:
                await self._run([job])
            return
        for job, result in zip(batch, results, strict=True):
            if not job.result.done():
                job.result.set_result(result)
