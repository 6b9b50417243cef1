"""Honest and hostile clients of `captioner serve` together.

    python -m benchmarks.soak --seconds 600

starts a server on loopback and asks it for captions and pictures from `--clients` clients: first
alone ("quiet", a tenth of the time), then together with hostile clients, which leave heads and
uploads unfinished, send nonsense, damaged images, captions at every limit and 13,000 options, wait
for the longest pictures, and leave before their answer. Prints one JSON object: the status and
seconds of single attacks before that, honest requests, those that were lost or got another image's
caption, p50 and p99 in seconds, the memory of the server and its processes, and the lines of its
log.

Hostile clients have machines of their own, so here they run in a process of their own, with the
lowest priority, and from another address (127.0.0.2, where the system has it; `--attack-from
127.0.0.1` for the honest ones' own).
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.serving import TIMEOUT_S, Response, ask, caption_of, figures, post, server

HOSTILE_EVERY_S = 0.2  # each kind of hostile client, once it has done its worst


def images(count: int) -> list[bytes]:
    """Photos of matplotlib's sample, each another part of it."""
    import matplotlib.cbook

    path = matplotlib.cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)
    photo = Image.open(path).convert("RGB")
    files = []
    for number in range(count):
        left, top = 12 * number, 10 * number
        file = io.BytesIO()
        photo.crop((left, top, left + 350, top + 400)).save(file, format="JPEG", quality=90)
        files.append(file.getvalue())
    return files


def honest(
    port: int, photos: list[bytes], expected: list[str], seconds: float, clients: int
) -> dict[str, Any]:
    """Send one request after another from each client; every fifth is for a picture."""
    end = time.monotonic() + seconds
    responses: list[Response] = []

    def client(number: int) -> None:
        while time.monotonic() < end:
            number += 1
            photo = number % len(photos)
            if number % 5:
                response = ask(port, "/v1/captions", photos[photo], expected[photo])
            else:
                response = ask(port, "/v1/pictures", photos[photo], None)
            responses.append(response)

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    return figures(responses)


@contextlib.contextmanager
def in_threads(calls: Iterable[Callable[[], object]]) -> Iterator[None]:
    """Run calls in threads of their own; at the end, wait for them."""
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


def hostile_clients(port: int, photo: bytes, address: str) -> dict[str, Callable[[], object]]:
    """One action a kind, from an address of this machine."""
    generator = random.Random(3)
    stalled: list[socket.socket] = []

    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", port), TIMEOUT_S, (address, 0))

    def send(path: str, body: bytes) -> None:
        post(port, path, body, address)

    def stall(content: bytes) -> None:
        opened = connect()
        opened.sendall(content)
        stalled.append(opened)
        if len(stalled) > 700:
            stalled.pop(0).close()

    def head(path: str, length: int) -> bytes:
        lines = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
        return f"{lines}Content-Length: {length}\r\n\r\n".encode()

    def damaged() -> None:
        content = bytearray(photo)
        for _ in range(20):
            content[generator.randrange(len(content))] = generator.randrange(256)
        send("/v1/captions", bytes(content))

    def leave(path: str) -> None:
        with connect() as opened:
            opened.sendall(head(path, len(photo)) + photo)
            time.sleep(0.05)

    ligatures, words = "%EF%B7%BA+" * 500, "+".join(["dog"] * 60)
    return {
        "unfinished heads": lambda: [stall(b"POST / HTTP/1.1\r\nHost:") for _ in range(20)],
        "stalled uploads": lambda: [stall(head("/v1/captions", 9**6) + photo) for _ in range(20)],
        "nonsense": lambda: [stall(b"\0nonsense\r\n\r\n") for _ in range(20)],
        "damaged images": damaged,
        "long captions": lambda: send(f"/v1/pictures?format=gif&caption={ligatures}", photo),
        "longest pictures": lambda: send(f"/v1/pictures?format=gif&caption={words}", photo),
        "longest captions": lambda: leave(f"/v1/pictures?format=gif&caption={words}"),
        "scores": lambda: leave(f"/v1/scores?caption={words}"),
        "options": lambda: send("/v1/captions?" + "&".join(["a=1"] * 13_000), photo),
        "leaving": lambda: leave("/v1/captions"),
    }


def probe(port: int, photo: bytes, address: str) -> dict[str, object]:
    """Seconds that an honest caption takes while one kind of attack lasts, and of refusals.

    Of a picture, while animations are drawn for a client at another address.
    """

    def seconds(path: str = "/v1/captions") -> tuple[int, float]:
        response = ask(port, path, photo, None)
        return response.status, round(response.seconds, 2)

    upload = "POST /v1/captions HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
    ligatures, words = "%EF%B7%BA+" * 500, "+".join(["dog"] * 60)
    found: dict[str, object] = {"alone": seconds()}
    found["picture of 500 ligatures"] = seconds(f"/v1/pictures?caption={ligatures}")
    found["13,000 options"] = seconds("/v1/captions?" + "&".join(["a=1"] * 13_000))
    score = partial(post, port, f"/v1/scores?caption={words}", photo)
    with in_threads([score] * 8):
        found["during 8 scores of 60 words"] = seconds()
    found["picture alone"] = seconds("/v1/pictures")
    animate = partial(post, port, f"/v1/pictures?format=gif&caption={words}", photo, address)
    with in_threads([animate] * 6):
        time.sleep(2)
        found["picture during 6 animations"] = [seconds("/v1/pictures") for _ in range(3)]
    for name, content, count in (
        ("1,100 unfinished heads", b"POST / HTTP/1.1\r\n", 1100),
        ("128 stalled uploads", f"{upload}Content-Length: 99999\r\n\r\nx".encode(), 128),
    ):
        with contextlib.ExitStack() as opened:
            for _ in range(count):
                connection = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
                opened.enter_context(connection).sendall(content)
            found[f"during {name}"] = seconds()
    return found


def memory_mb(pid: int) -> float:
    """Memory of a process and its descendants, shared pages counted once (Linux)."""
    from benchmarks.timing import descendants  # with PyTorch, which the clients do not need

    kibibytes = 0
    for process in descendants(pid):
        with contextlib.suppress(OSError, IndexError):
            status = Path(f"/proc/{process}/smaps_rollup").read_text()
            kibibytes += int(status.split("Pss:")[1].split()[0])
    return round(kibibytes / 1024, 1)


def attack(port: int, address: str) -> None:
    """Be all hostile clients until standard input ends; print how often each has acted."""
    if hasattr(os, "nice"):
        os.nice(19)
    actions: Counter[str] = Counter()
    stop = threading.Event()

    def repeat(kind: str, action: Callable[[], object]) -> None:
        while not stop.wait(HOSTILE_EVERY_S):
            with contextlib.suppress(OSError, http.client.HTTPException):
                action()
            actions[kind] += 1

    kinds = hostile_clients(port, images(1)[0], address).items()
    with in_threads([partial(repeat, *kind) for kind in kinds]):
        sys.stdin.read()
        stop.set()
    print(json.dumps(actions))


@contextlib.contextmanager
def attackers(port: int, address: str) -> Iterator[dict[str, int]]:
    """Let hostile clients act; what they have done is in the dictionary afterwards."""
    command = [sys.executable, "-m", "benchmarks.soak", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--attack-from", address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    actions: dict[str, int] = {}
    try:
        yield actions
    finally:
        actions.update(json.loads(process.communicate()[0]))


def hostile_address() -> str:
    """Return 127.0.0.2, or 127.0.0.1 on systems that have only that."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.2", 0))
    except OSError:
        return "127.0.0.1"
    return "127.0.0.2"


def soak(seconds: float, clients: int, attack_from: str) -> dict[str, object]:
    """The figures of the module's docstring."""
    photos = images(12)
    with tempfile.TemporaryFile("w+") as log:
        with server("--device", "cpu", log=log) as (process, port):
            expected = [caption_of(post(port, "/v1/captions", photo)[1]) for photo in photos]
            for photo in photos[:4]:  # the first pictures wait for imports
                post(port, "/v1/pictures", photo)
            probes = probe(port, photos[0], attack_from)
            quiet = honest(port, photos, expected, seconds / 10, clients)
            memory = [memory_mb(process.pid)]
            stop = threading.Event()

            def watch() -> None:
                while not stop.wait(5):
                    memory.append(memory_mb(process.pid))

            with in_threads([watch]):
                with attackers(port, attack_from) as actions:
                    together = honest(port, photos, expected, seconds * 0.9, clients)
                stop.set()
            began = time.monotonic()
        ended = time.monotonic()
        log.seek(0)
        return {
            "seconds": seconds,
            "probes": probes,
            "honest_clients": clients,
            "hostile_address": attack_from,
            "hostile_actions": actions,
            "quiet": quiet,
            "with_hostile": together,
            "p99_ratio": round(together["p99_s"] / quiet["p99_s"], 2),
            "memory_mb": {"before": memory[0], "most": max(memory), "after": memory[-1]},
            "log_lines": len(log.readlines()),
            "shutdown_s": round(ended - began, 1),
            "server_exit_code": process.returncode,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=4, help="honest ones")
    parser.add_argument("--attack-from", metavar="ADDRESS", default=hostile_address())
    parser.add_argument("--port", type=int, help="only attack the server there, until stdin ends")
    arguments = parser.parse_args()
    if arguments.port is not None:
        attack(arguments.port, arguments.attack_from)
        return 0
    found = soak(arguments.seconds, arguments.clients, arguments.attack_from)
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
