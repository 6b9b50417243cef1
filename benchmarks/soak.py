"""Honest and hostile clients of `captioner serve` behind nginx.

    python -m benchmarks.soak --seconds 600

starts a server on loopback, and in front of it nginx with the configuration of docs/serving.md. It
asks for captions and pictures from `--clients` honest clients: first alone ("quiet", a tenth of the
time), then together with a hostile client, which leaves heads and uploads unfinished, sends
nonsense, damaged images, captions at every limit and 13,000 options, wants the longest pictures,
and leaves before its answer. Prints one JSON object: honest requests, those that were lost or got
another image's caption, p50 and p99 in seconds, and the memory of the server. Each client has an
address of its own (127.0.0.N), so it needs Linux.

The hostile client runs in a process of its own with the lowest priority, as it would have a machine
of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import json
import os
import random
import re
import shutil
import socket
import ssl
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

HOSTILE_ADDRESS = "127.0.0.2"
HOSTILE_EVERY_S = 0.2  # each kind of hostile action
PAGE = Path(__file__).resolve().parents[1] / "docs" / "serving.md"


def configuration(folder: Path, port: int, tls_port: int) -> str:
    """The configuration of docs/serving.md with ports, paths and certificate of this machine."""
    (text,) = re.findall(r"^```nginx\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    for there, here in (
        ("user www-data;\n", ""),
        ("/run/nginx.pid", f"{folder}/nginx.pid"),
        ("/var/log/nginx/error.log", f"{folder}/error.log"),
        ("listen 80;", "listen unix:" + str(folder / "http.socket") + ";"),
        ("listen 443 ", f"listen 127.0.0.1:{tls_port} "),
        ("/etc/ssl/certs/captions.example.org.pem", f"{folder}/certificate.pem"),
        ("/etc/ssl/private/captions.example.org.key", f"{folder}/key.pem"),
        ("http://127.0.0.1:8000", f"http://127.0.0.1:{port}"),
    ):
        assert there in text, there
        text = text.replace(there, here)
    places = "client_body proxy fastcgi uwsgi scgi".split()
    return text.replace(
        "http {\n", "http {\n" + "".join(f"{name}_temp_path {folder}/{name};\n" for name in places)
    )


@contextlib.contextmanager
def nginx(port: int) -> Iterator[int]:
    """Run nginx in front of a port of this machine; yield the port on which it speaks TLS."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise FileNotFoundError("needs nginx: apt-get install nginx")
    with socket.create_server(("127.0.0.1", 0)) as free:
        tls_port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=t"
        files = ["-keyout", folder / "key.pem", "-out", folder / "certificate.pem"]
        subprocess.run(["openssl", *command.split(), *files], check=True, capture_output=True)
        (folder / "nginx.conf").write_text(configuration(folder, port, tls_port))
        process = subprocess.Popen(
            [program, "-p", folder, "-c", folder / "nginx.conf", "-g", "daemon off;"]
        )
        try:
            while process.poll() is None:
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection(("127.0.0.1", tls_port)),
                ):
                    break
                time.sleep(0.05)
            yield tls_port
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


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
        address = f"127.0.0.{10 + number}"
        while time.monotonic() < end:
            number += 1
            photo = number % len(photos)
            path, text = ("/v1/captions", expected[photo]) if number % 5 else ("/v1/pictures", None)
            responses.append(ask(port, path, photos[photo], text, address=address, tls=True))

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


def hostile_actions(port: int, photo: bytes) -> dict[str, Callable[[], object]]:
    """One action a kind."""
    generator = random.Random(3)
    stalled: list[socket.socket] = []
    context = ssl._create_unverified_context()

    def connect() -> socket.socket:
        opened = socket.create_connection(("127.0.0.1", port), TIMEOUT_S, (HOSTILE_ADDRESS, 0))
        return context.wrap_socket(opened)

    def send(path: str, body: bytes) -> None:
        post(port, path, body, address=HOSTILE_ADDRESS, tls=True)

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

    ligatures, words = "%EF%B7%BA+" * 500, "+".join(["dog"] * 30)
    return {
        "unfinished heads": lambda: [stall(b"POST / HTTP/1.1\r\nHost:") for _ in range(20)],
        "stalled uploads": lambda: [stall(head("/v1/captions", 9**6) + photo) for _ in range(20)],
        "nonsense": lambda: [stall(b"\0nonsense\r\n\r\n") for _ in range(20)],
        "damaged images": damaged,
        "long captions": lambda: send(f"/v1/pictures?format=gif&caption={ligatures}", photo),
        "longest pictures": lambda: send(f"/v1/pictures?format=gif&caption={words}", photo),
        "leaving pictures": lambda: leave(f"/v1/pictures?format=gif&caption={words}"),
        "leaving scores": lambda: leave(f"/v1/scores?caption={words}+{words}"),
        "options": lambda: send("/v1/captions?" + "&".join(["a=1"] * 13_000), photo),
        "leaving": lambda: leave("/v1/captions"),
    }


def memory_mb(pid: int) -> float:
    """Memory of a process (Linux)."""
    status = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return round(int(status.split("Pss:")[1].split()[0]) / 1024, 1)


def attack(port: int) -> None:
    """Be the hostile client until standard input ends; print how often it has acted."""
    os.nice(19)
    actions: Counter[str] = Counter()
    stop = threading.Event()

    def repeat(kind: str, action: Callable[[], object]) -> None:
        while not stop.wait(HOSTILE_EVERY_S):
            with contextlib.suppress(OSError, http.client.HTTPException):
                action()
            actions[kind] += 1

    kinds = hostile_actions(port, images(1)[0]).items()
    with in_threads([partial(repeat, *kind) for kind in kinds]):
        sys.stdin.read()
        stop.set()
    print(json.dumps(actions))


@contextlib.contextmanager
def attacker(port: int) -> Iterator[dict[str, int]]:
    """Let the hostile client act; what it has done is in the dictionary afterwards."""
    command = [sys.executable, "-m", "benchmarks.soak", "--attack", str(port)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    actions: dict[str, int] = {}
    try:
        yield actions
    finally:
        actions.update(json.loads(process.communicate()[0]))


def soak(seconds: float, clients: int) -> dict[str, Any]:
    """The figures of the module's docstring."""
    photos = images(12)
    with (
        tempfile.TemporaryFile("w+") as log,
        server("--device", "cpu", log=log) as (process, own_port),
        nginx(own_port) as port,
    ):
        expected = [caption_of(post(own_port, "/v1/captions", photo)[1]) for photo in photos]
        for photo in photos[:4]:  # the first pictures wait for imports
            post(own_port, "/v1/pictures", photo)
        quiet = honest(port, photos, expected, seconds / 10, clients)
        memory = [memory_mb(process.pid)]
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(5):
                memory.append(memory_mb(process.pid))

        with in_threads([watch]):
            with attacker(port) as actions:
                together = honest(port, photos, expected, seconds * 0.9, clients)
            stop.set()
    return {
        "seconds": seconds,
        "honest_clients": clients,
        "hostile_actions": actions,
        "quiet": quiet,
        "with_hostile": together,
        "p99_ratio": round(together["p99_s"] / quiet["p99_s"], 2),
        "memory_mb": {"before": memory[0], "most": max(memory), "after": memory[-1]},
        "server_exit_code": process.returncode,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=4, help="honest ones")
    parser.add_argument("--attack", type=int, metavar="PORT", help="only attack the server there")
    arguments = parser.parse_args()
    if arguments.attack is not None:
        attack(arguments.attack)
        return 0
    print(json.dumps(soak(arguments.seconds, arguments.clients), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
