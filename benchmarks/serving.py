"""Throughput of `captioner serve` with many clients, and that nobody gets another's caption.

    python -m benchmarks.serving --photos data/flickr8k/images

starts a server on loopback, sends `--requests` requests from `--clients` clients (each waits for
its answer), then `--alone` requests from a single client, and prints one JSON object: requests lost
(no answer, or an error), mixed up (not the caption that Python gives for that photo), p50 and p99
in seconds, requests a second, and the ratio of both. Exit code 1 if one was lost or mixed up.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from captioner import Captioner

TIMEOUT_S = 120


@dataclass(frozen=True)
class Response:
    photo: int
    seconds: float
    status: int
    caption: str


def send_all(
    host: str, port: int, photos: list[bytes], *, requests: int, clients: int
) -> tuple[list[Response], float]:
    """Return the responses to `requests` requests, photo after photo, and the seconds they took."""
    work: SimpleQueue[int] = SimpleQueue()
    for number in range(requests):
        work.put(number % len(photos))
    answers: SimpleQueue[Response] = SimpleQueue()

    def client() -> None:
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        while True:
            try:
                photo = work.get_nowait()
            except Empty:
                return
            began = time.perf_counter()
            headers = {"Content-Type": "image/jpeg"}
            try:
                connection.request("POST", "/v1/captions", photos[photo], headers)
                response = connection.getresponse()
                content = json.loads(response.read())
            except (OSError, http.client.HTTPException):
                connection.close()
                continue  # counted as lost
            caption = content["captions"][0]["caption"] if response.status == 200 else ""
            seconds = time.perf_counter() - began
            answers.put(Response(photo, seconds, response.status, caption))

    threads = [threading.Thread(target=client) for _ in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    return [answers.get() for _ in range(answers.qsize())], seconds


def figures(answers: list[Response], seconds: float, sent: int, expected: list[str]) -> dict:
    """Return the counts and times of one run."""
    good = [answer for answer in answers if answer.status == 200]
    times = sorted(answer.seconds for answer in good)

    def percentile(share: float) -> float:
        return round(times[math.ceil(share * len(times)) - 1], 3)

    return {
        "requests": sent,
        "lost": sent - len(good),
        "mixed_up": sum(answer.caption != expected[answer.photo] for answer in good),
        "p50_s": percentile(0.50),
        "p99_s": percentile(0.99),
        "requests_per_s": round(len(good) / seconds, 2),
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

    paths = sorted(arguments.photos.glob("*.jpg"))[: arguments.distinct]
    photos = [path.read_bytes() for path in paths]
    python = Captioner.from_pretrained(device=arguments.device)
    expected = [python.caption(photo).text for photo in photos]
    del python

    command = [sys.executable, "-m", "captioner", "serve", "--model", "soft", "--port", "0"]
    server = subprocess.Popen(
        [*command, "--device", arguments.device, "--deadline", "60"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().rpartition("//")[2].strip()
        host, _, port = address.rpartition(":")
        send_all(host, int(port), photos[:32], requests=32, clients=16)  # warm
        runs = {}
        for name, count, clients in (
            ("together", arguments.requests, arguments.clients),
            ("one_at_a_time", arguments.alone, 1),
        ):
            answers, seconds = send_all(host, int(port), photos, requests=count, clients=clients)
            runs[name] = figures(answers, seconds, count, expected)
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(TIMEOUT_S)
    ratio = runs["together"]["requests_per_s"] / runs["one_at_a_time"]["requests_per_s"]
    result = {
        "clients": arguments.clients,
        "distinct_photos": len(photos),
        "distinct_captions": len(set(expected)),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        **runs,
        "ratio": round(ratio, 2),
        "server_exit_code": code,
    }
    print(json.dumps(result, indent=1))
    return int(any(run["lost"] or run["mixed_up"] for run in runs.values()) or code != 0)


if __name__ == "__main__":
    sys.exit(main())
