"""`captioner serve --workers 2`: one port, and a replica that dies costs its own requests alone."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from programs import Programs
from serving_tools import started

from captioner import Captioner

CLIENTS, REQUESTS = 6, 20


def replicas(server: int) -> list[int]:
    """The processes of a server's replicas: those of its children that serve."""
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return [
        int(child)
        for child in children
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the replicas in /proc")
def test_a_replica_killed_under_load_is_replaced_and_the_others_answer(
    programs: Programs, tiny_model: Path, drawn_photos: Path
) -> None:
    photos = [(drawn_photos / f"{number:02d}.jpg").read_bytes() for number in range(12)]
    captioner = Captioner.from_pretrained(tiny_model, device="cpu")
    expected = [captioner.caption(photo).text for photo in photos]
    lost = 0

    def ask(number: int) -> str:
        """Ask until there is an answer: a replica that dies resets its connections."""
        nonlocal lost
        end = time.monotonic() + 100
        while True:
            connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
            try:
                connection.request(
                    "POST", "/v1/captions", photos[number], {"Content-Type": "image/jpeg"}
                )
                answer = connection.getresponse()
                content = json.loads(answer.read())
            except (OSError, http.client.HTTPException):
                lost += 1
                assert time.monotonic() < end
                continue
            finally:
                connection.close()
            assert answer.status == 200, content
            return str(content["captions"][0]["caption"])

    with started(programs, "--checkpoint", tiny_model, "--workers", 2) as (address, server):
        server.wait_until(lambda: len(replicas(server.pid)) == 2)
        ask(0)
        first = replicas(server.pid)
        numbers = [number % len(photos) for number in range(CLIENTS * REQUESTS)]
        killer = threading.Timer(0.5, os.kill, (first[0], signal.SIGKILL))
        killer.start()
        with ThreadPoolExecutor(CLIENTS) as clients:
            answers = list(clients.map(ask, numbers))
        assert answers == [expected[number] for number in numbers]
        assert lost <= CLIENTS, "a client loses at most the request that the replica had"
        server.wait_until(lambda: len(set(replicas(server.pid)) - {first[0]}) == 2)
        server.signal(signal.SIGTERM)
        outcome = server.wait()
    assert outcome.code == 0, outcome
    assert "Traceback" not in outcome.stderr
