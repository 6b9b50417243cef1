"""What tests of the service share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from programs import Programs, Running

BASE = "http://127.0.0.1:8000"


@contextmanager
def started(
    programs: Programs, *arguments: object, **environment: str
) -> Iterator[tuple[str, Running]]:
    """`captioner serve` on a free port: its address, and the program; stopped afterwards."""
    server = programs.start(
        "captioner", "serve", "--port", 0, "--device", "cpu", *arguments, **environment
    )
    told = server.folder / "stdout"
    server.wait_until(
        lambda: server.poll() is not None or (told.exists() and "\n" in told.read_text())
    )
    assert server.poll() is None, (server.folder / "stderr").read_text()
    try:
        yield told.read_text().split()[-1] + "/", server
    finally:
        if server.poll() is None:
            server.signal(signal.SIGTERM)
            server.wait()
