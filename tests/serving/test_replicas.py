"""`captioner serve --workers 2`: a replica that dies is replaced, and the other one answers."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from programs import Programs
from serving_tools import started

from captioner import Captioner


def replicas(server: int) -> list[int]:
    """Return the processes of a server's replicas: those of its children that serve."""
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return [
        int(child)
        for child in children
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the replicas in /proc")
def test_killed_replica_is_replaced_and_the_other_answers(
    programs: Programs, tiny_model: Path, drawn_photos: Path
) -> None:
    photo = (drawn_photos / "01.jpg").read_bytes()
    expected = Captioner.from_pretrained(tiny_model, device="cpu").caption(photo).text

    def ask() -> str:
        """Ask until there is an answer: a replica that dies resets its connections."""
        end = time.monotonic() + 100
        while time.monotonic() < end:
            connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
            try:
                connection.request("POST", "/v1/captions", photo, {"Content-Type": "image/jpeg"})
                answer = json.loads(connection.getresponse().read())
                return str(answer["captions"][0]["caption"])
            except (OSError, http.client.HTTPException):
                continue
            finally:
                connection.close()
        raise AssertionError("no answer")

    with started(programs, "--checkpoint", tiny_model, "--workers", 2) as (address, server):
        server.wait_until(lambda: len(replicas(server.pid)) == 2)
        assert ask() == expected
        first = replicas(server.pid)[0]
        os.kill(first, signal.SIGKILL)
        assert [ask() for _ in range(5)] == [expected] * 5
        server.wait_until(lambda: len(set(replicas(server.pid)) - {first}) == 2)
        server.signal(signal.SIGTERM)
        outcome = server.wait()
    assert outcome.code == 0, outcome
    assert "Traceback" not in outcome.stderr
