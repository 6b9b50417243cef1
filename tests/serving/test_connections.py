"""Limits on connections, with a real socket and a small application behind it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import uvicorn

from captioner.serving.connections import Connections, LimitedLog, LimitedProtocol, connection_limit

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"


async def echo_size(scope: Any, receive: Any, send: Any) -> None:
    """Answer the size of the body; /slow after a second, /large with 20 MB."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message["body"]), message["more_body"]
    if scope["path"] == "/slow":
        await asyncio.sleep(1)
    body = b"x" * 20_000_000 if scope["path"] == "/large" else str(size).encode()
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", str(len(body)).encode())],
        }
    )
    await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def serving(limits: Connections) -> Iterator[int]:
    """A server on a free port of loopback."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        echo_size,
        http=partial(LimitedProtocol, limits=limits),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        backlog=128,
        log_config=None,
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def connected(port: int, sent: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", port), 30, source_address=(source, 0))
    if sent:
        opened.sendall(sent)
    return opened


def ask(port: int, path: str = "/", body: bytes = b"12345") -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", path, body)
    content = connection.getresponse().read()
    connection.close()
    return content


def answer(opened: socket.socket) -> bytes:
    """The body of the next answer."""
    opened.settimeout(30)
    response = http.client.HTTPResponse(opened)
    response.begin()
    return response.read()


def closed(opened: socket.socket, wait_s: float = 0.2) -> bool:
    """Whether the server has closed the connection without an answer."""
    opened.settimeout(wait_s)
    try:
        return opened.recv(1) == b""
    except (TimeoutError, BlockingIOError):  # the second without a wait
        return False
    except OSError:
        return True


def until_closed(opened: socket.socket, seconds: float = 10) -> float:
    began = time.monotonic()
    opened.settimeout(seconds)
    with contextlib.suppress(ConnectionError):
        assert opened.recv(1) == b""
    return time.monotonic() - began


def test_an_unfinished_head_is_cut_off_however_slowly_it_comes() -> None:
    with serving(Connections(100, head_timeout_s=0.7)) as port:
        silent, dripping = connected(port), connected(port, HEAD)
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < 5:
                dripping.sendall(b"X-A: b\r\n")
                time.sleep(0.05)
        assert time.monotonic() - began < 4
        assert until_closed(silent) < 4
        assert ask(port) == b"5"


def test_a_head_after_an_answer_has_its_time_as_well() -> None:
    with serving(Connections(100, head_timeout_s=0.5)) as port:
        opened = connected(port, HEAD + b"Content-Length: 1\r\n\r\nx")
        assert answer(opened) == b"1"
        opened.sendall(HEAD)
        assert until_closed(opened) < 4


def test_neither_work_nor_an_upload_is_cut_off_by_the_time_of_a_head() -> None:
    with serving(Connections(100, head_timeout_s=0.3)) as port:
        opened = connected(port, b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n")
        for byte in (b"x", b"y"):
            time.sleep(0.5)
            opened.sendall(byte)
        assert answer(opened) == b"2"
        opened.sendall(HEAD + b"Content-Length: 1\r\n\r\nx")
        assert answer(opened) == b"1", "and the connection is kept"


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"Content-Length: 9\r\n\r\nx"])
def test_silent_connections_keep_nobody_out(sent: bytes) -> None:
    limits = Connections(40, head_timeout_s=60)
    with serving(limits) as port:
        silent = [connected(port, sent) for _ in range(200)]
        began = time.monotonic()
        assert [ask(port) for _ in range(5)] == [b"5"] * 5
        assert time.monotonic() - began < 10
        assert len(limits) <= 41
        assert closed(silent[0])
        assert not closed(silent[-1])
        for opened in silent:
            opened.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs all of 127.0.0.0/8")
def test_one_client_leaves_connections_to_others() -> None:
    limits = Connections(40, head_timeout_s=60)
    with serving(limits) as port:
        quiet = [connected(port, HEAD, source="127.0.0.3") for _ in range(10)]
        greedy = [connected(port, HEAD, source="127.0.0.2") for _ in range(100)]
        assert ask(port) == b"5"
        time.sleep(1)
        assert [closed(opened, 0) for opened in quiet] == [False] * 10
        assert sum(closed(opened, 0) for opened in greedy) == 71
        for opened in (*quiet, *greedy):
            opened.close()


def test_where_all_are_served_one_more_is_closed() -> None:
    with serving(Connections(4)) as port:
        busy = [
            connected(port, b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
            for _ in range(3)
        ]
        time.sleep(0.3)
        assert closed(connected(port, HEAD))
        for opened in busy:
            opened.settimeout(30)
            assert answer(opened) == b"0"


def test_a_client_that_reads_nothing_is_cut_off_and_a_slow_one_is_not() -> None:
    limits = Connections(100, write_timeout_s=0.5)
    request = b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n"
    with serving(limits) as port:
        slow, deaf = connected(port, request), connected(port, request)
        received = 0
        while received < 20_000_000:
            content = slow.recv(1_000_000)
            assert content
            received += len(content)
            time.sleep(0.02)
        end = time.monotonic() + 20
        while len(limits) > 1:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert not closed(slow)
        deaf.close()


def test_the_limit_stays_below_that_of_open_files() -> None:
    assert 8 <= connection_limit() <= 512
    assert connection_limit(20) == 20


def test_a_log_is_bounded_and_says_what_was_left_out(caplog: pytest.LogCaptureFixture) -> None:
    log = LimitedLog(lines=3, interval_s=0.3)

    def passed(message: str, *arguments: object) -> list[str]:
        record = logging.LogRecord("a", logging.WARNING, "", 0, message, arguments, None)
        return [record.getMessage()] if log.filter(record) else []

    lines = [line for number in range(1000) for line in passed("client %d", number)]
    assert lines == ["client 0", "client 1", "client 2"]
    assert passed("another") == ["another"]
    time.sleep(0.4)
    assert passed("client %d", 5) == ["client 5 (997 more like this were not logged)"]
    assert passed("client %d", 6) == ["client 6"]
