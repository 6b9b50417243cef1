"""Run requests with equal settings through the model in one batch."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher:
    """Collects items of equal key and processes up to `max_batch` of them in one call.

    An item whose caller was cancelled is dropped.

    Args:
        max_batch: Most items in a batch.
        wait_s: Seconds that an item waits for others, before it waits for a free thread.
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
        self._waiting: dict[Hashable, OrderedDict[Future[Any], Any]] = {}  # items by their result
        self._threads = ThreadPoolExecutor(passes, thread_name_prefix="model")

    async def submit(
        self, key: Hashable, work: Callable[[Sequence[Item]], Sequence[Result]], item: Item
    ) -> Result:
        """Return the item's own result of `work`, which must be equivalent for equal keys."""
        result: Future[Result] = Future()
        waiting = self._waiting.setdefault(key, OrderedDict())
        waiting[result] = item
        try:
            await asyncio.sleep(self.wait_s)
            # Each item asks for a batch; that of an item which went with another finds no more.
            self._threads.submit(self._run_next, key, work)
            return await asyncio.wrap_future(result)
        finally:
            result.cancel()
            waiting.pop(result, None)
            if not self._waiting.get(key, True):
                del self._waiting[key]

    async def run_alone(self, work: Callable[[], Result]) -> Result:
        """Run what gains nothing from a batch in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Wait for the batches that run."""
        self._threads.shutdown(cancel_futures=True)

    def _run_next(self, key: Hashable, work: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        batch: list[tuple[Any, Future[Any]]] = []
        waiting = self._waiting.get(key, OrderedDict())
        with suppress(KeyError):  # another thread may take from it, too
            while len(batch) < self.max_batch:
                result, item = waiting.popitem(last=False)
                if result.set_running_or_notify_cancel():
                    batch.append((item, result))
        if not batch:
            return
        self.observe(len(batch))
        try:
            results = work([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001  it is raised where the items were submitted
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), found in zip(batch, results, strict=True):
            future.set_result(found)
