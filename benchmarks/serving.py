"""Throughput of `captioner serve` with many clients, and that nobody gets another's caption.

    python -m benchmarks.serving --photos data/flickr8k/images

starts a server on loopback, sends `--requests` requests from `--clients` clients (each waits for
its answer, and opens a connection for each request), then `--alone` requests from a single client,
and prints one JSON object: requests lost (no answer, or an error), mixed up (not the caption that
Python gives for that photo), p50 and p99 in seconds, requests a second, and the ratio of both. Exit
code 1 if one was lost or mixed up.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import math
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

TIMEOUT_S = 120


@contextlib.contextmanager
def server(
    *options: str, log: IO[str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run `captioner serve` on loopback; yield its process and port."""
    command = [sys.executable, "-m", "captioner", "serve", "--model", "soft", "--port", "0"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline().rpartition(":")[2])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(TIMEOUT_S)


def post(
    port: int, path: str, body: bytes, *, address: str = "", tls: bool = False
) -> tuple[int, bytes]:
    """Send a photo from an address of this machine; return status and content."""
    options: dict[str, Any] = {"timeout": TIMEOUT_S, "source_address": (address, 0)}
    connection = (
        http.client.HTTPSConnection(
            "127.0.0.1", port, context=ssl._create_unverified_context(), **options
        )
        if tls
        else http.client.HTTPConnection("127.0.0.1", port, **options)
    )
    try:
        connection.request("POST", path, body, {"Content-Type": "image/jpeg"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def caption_of(content: bytes) -> str:
    return str(json.loads(content)["captions"][0]["caption"])


@dataclass(frozen=True)
class Response:
    """What became of an honest request."""

    seconds: float
    status: int  # 0: no answer
    is_mixed_up: bool


def ask(port: int, path: str, photo: bytes, expected: str | None, **options: Any) -> Response:
    """Send a photo as an honest client does.

    Args:
        expected: The photo's caption; None where it is not the answer, as for pictures.
        options: Of `post`.
    """
    began = time.perf_counter()
    try:
        status, content = post(port, path, photo, **options)
    except (OSError, http.client.HTTPException):
        status, content = 0, b""
    seconds = time.perf_counter() - began
    with_caption = status == 200 and expected is not None
    return Response(seconds, status, with_caption and caption_of(content) != expected)


def figures(responses: Sequence[Response]) -> dict[str, Any]:
    """Return the counts of honest requests, and the times of those that were answered."""
    answered = [response.seconds for response in responses if response.status == 200]
    times = sorted(answered) or [math.nan]

    def percentile(share: float) -> float:
        return round(times[math.ceil(share * len(times)) - 1], 3)

    return {
        "requests": len(responses),
        "lost": sum(response.status != 200 for response in responses),
        "mixed_up": sum(response.is_mixed_up for response in responses),
        "p50_s": percentile(0.5),
        "p99_s": percentile(0.99),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photos", type=Path, required=True, help="a folder of JPEGs")
    parser.add_argument("--distinct", type=int, default=200, help="different photos")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--alone", type=int, default=100, help="requests one at a time")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()

    from captioner import Captioner  # not in the clients of soak.py, which need no model

    paths = sorted(arguments.photos.glob("*.jpg"))[: arguments.distinct]
    photos = [path.read_bytes() for path in paths]
    python = Captioner.from_pretrained(device=arguments.device)
    expected = [python.caption(photo).text for photo in photos]
    del python

    with server("--device", arguments.device, "--deadline", "60") as (process, port):

        def run(requests: int, clients: int) -> dict[str, Any]:
            def request(number: int) -> Response:
                photo = number % len(photos)
                return ask(port, "/v1/captions", photos[photo], expected[photo])

            began = time.perf_counter()
            with ThreadPoolExecutor(clients) as pool:
                found = figures(list(pool.map(request, range(requests))))
            answered = requests - found["lost"]
            seconds = time.perf_counter() - began
            return {**found, "requests_per_s": round(answered / seconds, 2)}

        run(32, 16)  # warm
        runs = {
            "together": run(arguments.requests, arguments.clients),
            "one_at_a_time": run(arguments.alone, 1),
        }
    ratio = runs["together"]["requests_per_s"] / runs["one_at_a_time"]["requests_per_s"]
    result = {
        "clients": arguments.clients,
        "distinct_photos": len(photos),
        "distinct_captions": len(set(expected)),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        **runs,
        "ratio": round(ratio, 2),
        "server_exit_code": process.returncode,
    }
    print(json.dumps(result, indent=1))
    failed = any(run["lost"] or run["mixed_up"] for run in runs.values())
    return int(failed or process.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
