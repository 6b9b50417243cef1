"""Fair order between clients: where several wait, the one served longest ago comes next."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

REMEMBERED_CLIENTS = 1000


class _HasClient(Protocol):
    @property
    def client(self) -> str: ...


Item = TypeVar("Item", bound=_HasClient)


class Turns:
    """Turns of clients: next is the one that was served longest ago, or never.

    However much one client sends, each of n clients gets every n-th turn, and a client that is
    alone gets all of them. Work that is cancelled while it waits has cost no turn.
    """

    def __init__(self) -> None:
        self._served: OrderedDict[str, int] = OrderedDict()  # the longest ago first
        self._turns = 0

    def first(self, waiting: Sequence[Item]) -> Item:
        """Return the item whose turn it is, of items in the order of their arrival."""
        return min(waiting, key=lambda item: self._served.get(item.client, 0))

    def serve(self, client: str) -> None:
        """Note that the client is served now."""
        self._turns += 1
        self._served[client] = self._turns
        self._served.move_to_end(client)
        if len(self._served) > REMEMBERED_CLIENTS:
            self._served.popitem(last=False)


class _Waiting:
    def __init__(self, client: str) -> None:
        self.client = client
        self.begin: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class FairSemaphore:
    """A semaphore that serves clients in turns, and keeps a place free of each of them.

    Turns alone would let one client's long tasks take all places: another would wait for their end.

    Args:
        places: How many may hold it at once; one client has all but one of them.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._client_places = max(1, places - 1)
        self._held: Counter[str] = Counter()  # places by client
        self._turns = Turns()
        self._waiting: list[_Waiting] = []

    @asynccontextmanager
    async def hold(self, client: str) -> AsyncIterator[None]:
        """Wait for a place and hold it."""
        waiting = _Waiting(client)
        self._waiting.append(waiting)
        self._begin()
        try:
            await waiting.begin
            yield
        finally:
            if waiting in self._waiting:  # cancelled while it waited
                self._waiting.remove(waiting)
            else:
                self._held -= Counter([client])
                self._begin()

    def _begin(self) -> None:
        """Give free places to the clients whose turn it is."""
        # One whose future was cancelled removes itself.
        while self._held.total() < self._places and (
            ready := [
                each
                for each in self._waiting
                if not each.begin.cancelled() and self._held[each.client] < self._client_places
            ]
        ):
            following = self._turns.first(ready)
            self._waiting.remove(following)
            self._held[following.client] += 1
            self._turns.serve(following.client)
            following.begin.set_result(None)
