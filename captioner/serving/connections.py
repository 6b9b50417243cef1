"""Limits on connections, and a log that clients cannot fill.

uvicorn has no timeout for the head of a request (its keep-alive timeout begins after the first
answer), limits requests but not connections, and gives no client a share. It accepts a protocol
class, though, and this is one.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from captioner.serving.admission import client_key, client_share

MAX_CONNECTIONS = 512
HEAD_TIMEOUT_S = 10.0  # from a connection's (or a request's) first byte to the end of its head
WRITE_TIMEOUT_S = 30.0  # for a client that reads nothing of its answer
BACKLOG = 128  # connections that the kernel queues; all of them are accepted before any is served
RESERVED_DESCRIPTORS = 2 * BACKLOG  # for files, pipes, and connections about to be closed

LOG_LINES = 10
LOG_INTERVAL_S = 60.0


def connection_limit(wanted: int = MAX_CONNECTIONS) -> int:
    """Return how many connections the process's limit on open files leaves room for."""
    if sys.platform == "win32":
        return wanted
    import resource

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(8, min(wanted, soft - RESERVED_DESCRIPTORS))


class Connections:
    """The open connections of a server.

    A new connection that is one too many closes another: of the client that has most, the one that
    has been silent for longest while the server waited for a request or for the rest of one. Where
    there is none, it is closed itself. So clients that stall keep nobody out.

    Args:
        limit: Number of all connections; one client has at most `client_share` of them.
        head_timeout_s: Seconds for the head of a request.
        write_timeout_s: Seconds in which a client reads no byte of its answer.
    """

    def __init__(
        self,
        limit: int,
        *,
        head_timeout_s: float = HEAD_TIMEOUT_S,
        write_timeout_s: float = WRITE_TIMEOUT_S,
    ) -> None:
        self.limit = limit
        self.head_timeout_s, self.write_timeout_s = head_timeout_s, write_timeout_s
        self._by_client: Counter[str] = Counter()
        self._waiting: dict[LimitedProtocol, None] = {}  # the longest silent first

    def __len__(self) -> int:
        return self._by_client.total()

    def add(self, connection: LimitedProtocol) -> bool:
        """Count a connection; return whether there is room for it."""
        client = connection.client_key
        self._by_client[client] += 1
        if self._by_client[client] > client_share(self.limit):
            longest = self._longest_silent(client)
        elif len(self) > self.limit:
            most = max(self._by_client, key=lambda each: self._by_client[each])
            longest = self._longest_silent(most) or next(iter(self._waiting), None)
        else:
            return True
        if longest is None:
            return False
        del self._waiting[longest]  # now: it is removed only in the loop's next round
        longest.transport.abort()
        return True

    def _longest_silent(self, client: str) -> LimitedProtocol | None:
        return next((each for each in self._waiting if each.client_key == client), None)

    def remove(self, connection: LimitedProtocol) -> None:
        """Forget a connection that has been closed."""
        self._waiting.pop(connection, None)
        self._by_client -= Counter([connection.client_key])

    def wait_for(self, connection: LimitedProtocol) -> None:
        """Note that the server waits for this client, who has just been active."""
        self._waiting.pop(connection, None)
        self._waiting[connection] = None

    def serve(self, connection: LimitedProtocol) -> None:
        """Note that this client waits for the server."""
        self._waiting.pop(connection, None)


class LimitedProtocol(H11Protocol):
    """uvicorn's HTTP protocol within the limits of `Connections`."""

    def __init__(self, *arguments: Any, limits: Connections, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.limits = limits
        self.client_key = ""
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.client_key = client_key(self.client[0] if self.client else "")
        if not self.limits.add(self):
            transport.abort()
            return
        self.limits.wait_for(self)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self.limits.remove(self)
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_write_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _update(self) -> None:
        """Note who waits for whom, and keep the time of a head."""
        if self.transport.is_closing():
            return
        state = self.conn.their_state
        # A body that nobody reads, because its request was refused, has the time of a head.
        head = state is h11.IDLE or (state is h11.SEND_BODY and self.conn.our_state is h11.DONE)
        if head or state is h11.SEND_BODY:
            self.limits.wait_for(self)
        else:
            self.limits.serve(self)
        if head:
            # uvicorn's keep-alive timer runs until the next request's first byte.
            if self._head_timer is None and self.timeout_keep_alive_task is None:
                self._start_head_timer()
        elif self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _start_write_timer(self) -> None:
        """Close the connection if the client reads nothing until the timeout."""
        unsent = self.transport.get_write_buffer_size()

        def check() -> None:
            if self.transport.get_write_buffer_size() < unsent:
                self._start_write_timer()
            else:
                self.transport.abort()

        self._write_timer = self.loop.call_later(self.limits.write_timeout_s, check)

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.head_timeout_s, self.transport.abort)


class LimitedLog(logging.Filter):
    """Lets `lines` records of a kind pass per interval; the next tells how many were left out.

    A kind is a logger with a message before its arguments are put in.
    """

    def __init__(self, lines: int = LOG_LINES, interval_s: float = LOG_INTERVAL_S) -> None:
        super().__init__()
        self.lines, self.interval_s = lines, interval_s
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind, now = (record.name, str(record.msg)[:200]), time.monotonic()
        began, count = self._kinds.get(kind, (now, 0))
        if now - began >= self.interval_s:
            left_out = count - self.lines
            if left_out > 0:
                record.msg = f"{record.msg} ({left_out} more like this were not logged)"
            began, count = now, 0
        if len(self._kinds) >= 1000:
            self._kinds.clear()
        self._kinds[kind] = began, count + 1
        return count < self.lines


def limit_logs() -> None:
    """Write warnings of the server and of asyncio to stderr, each kind a few times a minute."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    handler.addFilter(LimitedLog())
    for name in ("uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.WARNING)
        logger.propagate = False
