"""`captioner serve` as a user runs it: on a socket, with many clients, until it is told to stop."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from programs import REPOSITORY, Programs

sys.path.append(str(Path(__file__).parents[1] / "serving"))
from serving_tools import started

from captioner import Captioner

CLIENTS, REQUESTS = 16, 96


def ask(address: str, photo: bytes) -> str:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=120)
    connection.request("POST", "/v1/captions", photo, {"Content-Type": "image/jpeg"})
    answer = connection.getresponse()
    content = json.loads(answer.read())
    assert answer.status == 200, content
    return str(content["captions"][0]["caption"])


def test_many_clients_at_once_each_get_their_own_caption(
    programs: Programs, tiny_model: Path, drawn_photos: Path
) -> None:
    photos = [(drawn_photos / f"{number:02d}.jpg").read_bytes() for number in range(12)]
    captioner = Captioner.from_pretrained(tiny_model, device="cpu")
    expected = [captioner.caption(photo).text for photo in photos]
    assert len(set(expected)) > 3
    with started(programs, "--checkpoint", tiny_model) as (address, _):
        with ThreadPoolExecutor(CLIENTS) as clients:
            numbers = [number % len(photos) for number in range(REQUESTS)]
            answers = list(clients.map(lambda number: ask(address, photos[number]), numbers))
        connection = http.client.HTTPConnection(urlsplit(address).netloc)
        connection.request("GET", "/metrics")
        figures = connection.getresponse().read().decode()
    assert answers == [expected[number] for number in numbers]
    (passes,) = (
        line for line in figures.splitlines() if line.startswith("captioner_batch_photos_count")
    )
    assert float(passes.split()[1]) < REQUESTS / 2, "they went through the model together"


def test_sigterm_answers_requests_that_have_begun(
    programs: Programs, tiny_model: Path, drawn_photos: Path
) -> None:
    photo = (drawn_photos / "01.jpg").read_bytes()
    with started(programs, "--checkpoint", tiny_model) as (address, server):
        ask(address, photo)
        # A body that comes slowly: the request is certainly inside when the signal comes.
        host, _, port = urlsplit(address).netloc.partition(":")
        with socket.create_connection((host, int(port)), timeout=120) as connection:
            head = f"POST /v1/captions HTTP/1.1\r\nHost: {host}\r\nContent-Type: image/jpeg\r\n"
            head += f"Content-Length: {len(photo)}\r\nConnection: close\r\n\r\n"
            connection.sendall(head.encode() + photo[:100])
            time.sleep(0.5)
            server.signal(signal.SIGTERM)
            time.sleep(0.5)
            connection.sendall(photo[100:])
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        outcome = server.wait()
    assert b"HTTP/1.1 200" in answer, answer
    assert outcome.code == 0, outcome
    assert outcome.stderr == ""


def test_a_second_ctrl_c_ends_at_once_without_a_traceback(
    programs: Programs, tiny_model: Path
) -> None:
    with started(programs, "--checkpoint", tiny_model) as (address, server):
        host, _, port = urlsplit(address).netloc.partition(":")
        with socket.create_connection((host, int(port))) as connection:
            head = f"POST /v1/captions HTTP/1.1\r\nHost: {host}\r\nContent-Type: image/jpeg\r\n"
            connection.sendall(head.encode() + b"Content-Length: 9\r\n\r\nphoto")
            for _ in range(2):  # the request's end never comes
                time.sleep(0.5)
                assert server.poll() is None
                server.signal(signal.SIGINT)
            outcome = server.wait()
    assert (outcome.code, outcome.stderr) == (-signal.SIGINT, "")


def test_missing_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['fastapi'] = None\n"
        "from captioner.__main__ import main; sys.exit(main(['serve', '--port', '0']))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: serve needs fastapi, which is not installed")
    assert "[serve]" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
