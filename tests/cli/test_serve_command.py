"""`captioner serve` as a user runs it: on a socket, with many clients, until it is told to stop."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from programs import REPOSITORY, Programs

sys.path.append(str(Path(__file__).parents[1] / "serving"))
from serving_tools import started

from captioner import Captioner

CLIENTS, REQUESTS = 16, 96


def ask(address: str, photo: bytes, connection: http.client.HTTPConnection | None = None) -> str:
    connection = connection or http.client.HTTPConnection(urlsplit(address).netloc, timeout=120)
    connection.request("POST", "/v1/captions", photo, {"Content-Type": "image/jpeg"})
    answer = connection.getresponse()
    content = json.loads(answer.read())
    assert answer.status == 200, content
    return str(content["captions"][0]["caption"])


def test_many_clients_at_once_lose_nothing_and_mix_nothing_up(
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


def test_sigterm_answers_requests_that_have_begun_and_ends_with_0(
    programs: Programs, tiny_model: Path, drawn_photos: Path
) -> None:
    photo = (drawn_photos / "01.jpg").read_bytes()
    with started(programs, "--checkpoint", tiny_model) as (address, server):
        ask(address, photo)
        answers: list[str] = []
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
        answers.append(answer.decode())
        outcome = server.wait()
    assert "HTTP/1.1 200" in answers[0], answers
    assert outcome.code == 0, outcome
    assert outcome.stderr == ""


def send_head(address: str, path: str, length: int, content: bytes = b"") -> socket.socket:
    """A connection with a request of which only a part has been sent."""
    host, _, port = urlsplit(address).netloc.partition(":")
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: image/jpeg\r\n"
    connection = socket.create_connection((host, int(port)), timeout=120)
    connection.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode() + content)
    return connection


def test_sigterm_has_a_deadline(programs: Programs, tiny_model: Path, drawn_photos: Path) -> None:
    photo = (drawn_photos / "01.jpg").read_bytes()
    with started(programs, "--checkpoint", tiny_model, "--deadline", 2) as (address, server):
        ask(address, photo)
        path = "/v1/pictures?format=gif&caption=" + "+".join(["disc"] * 60)
        working = [send_head(address, path, len(photo), photo) for _ in range(8)]
        stalled = [send_head(address, "/v1/captions", 5000, photo[:100]) for _ in range(8)]
        time.sleep(0.5)
        server.signal(signal.SIGTERM)
        began = time.monotonic()
        outcome = server.wait()
        for connection in (*working, *stalled):
            connection.close()
    assert time.monotonic() - began < 30  # 2 + 5 s, and a busy machine
    assert outcome.code == 0, outcome
    assert "Traceback" not in outcome.stderr


def test_more_unfinished_connections_than_it_takes_keep_nobody_out_and_fill_no_log(
    programs: Programs, tiny_model: Path, drawn_photos: Path
) -> None:
    photo = (drawn_photos / "01.jpg").read_bytes()
    with started(programs, "--checkpoint", tiny_model) as (address, server):
        ask(address, photo)
        host, _, port = urlsplit(address).netloc.partition(":")
        sockets = []
        for number in range(700):
            connection = socket.create_connection((host, int(port)), timeout=120)
            connection.sendall(b"POST /v1/captions HTTP/1.1\r\nHost: a\r\n"[: number % 40])
            sockets.append(connection)
        sockets += [send_head(address, "/v1/captions", 5000, photo[:100]) for _ in range(128)]
        began = time.monotonic()
        assert ask(address, photo)
        assert time.monotonic() - began < 20
        for connection in sockets:
            connection.close()
        for _ in range(200):
            with socket.create_connection((host, int(port)), timeout=120) as connection:
                connection.sendall(b"nonsense\r\n\r\n")
                assert connection.recv(1000).startswith(b"HTTP/1.1 400")
        server.signal(signal.SIGTERM)
        outcome = server.wait()
    assert outcome.code == 0
    assert 0 < len(outcome.stderr.splitlines()) <= 10, outcome.stderr


def test_a_page_of_another_site_is_refused_unless_it_is_allowed(
    programs: Programs, tiny_model: Path, drawn_photos: Path
) -> None:
    photo = (drawn_photos / "01.jpg").read_bytes()
    options = ["--checkpoint", tiny_model, "--allow-origin", "https://friend.example"]
    with started(programs, *options) as (address, _):
        for origin, status in (("https://friend.example", 200), ("https://foe.example", 403)):
            connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=120)
            headers = {"Content-Type": "image/jpeg", "Origin": origin}
            connection.request("POST", "/v1/captions", photo, headers)
            assert connection.getresponse().status == status
    wrong = programs.run("captioner", "serve", "--allow-origin", "friend.example/page")
    assert wrong.code == 2
    assert "friend.example/page" in wrong.stderr


def test_ctrl_c_ends_it_the_same_way(programs: Programs, tiny_model: Path) -> None:
    with started(programs, "--checkpoint", tiny_model) as (address, server):
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=120)
        connection.request("GET", "/ready")
        assert connection.getresponse().status == 200
        connection.close()
        server.signal(signal.SIGINT)
        outcome = server.wait()
    assert (outcome.code, outcome.stderr) == (0, "")


def test_hostile_files_do_not_take_it_down(
    programs: Programs, tiny_model: Path, drawn_photos: Path
) -> None:
    photo = (drawn_photos / "01.jpg").read_bytes()
    with started(programs, "--checkpoint", tiny_model) as (address, _):
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=120)
        for body in (b"", b"\0" * 1000, photo[: len(photo) // 2], photo[:20] + b"\xff" * 5000):
            connection.request("POST", "/v1/captions", body, {"Content-Type": "image/png"})
            answer = connection.getresponse()
            assert answer.status in (415, 422)
            assert json.loads(answer.read())["detail"]
        assert ask(address, photo, connection)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "no-such-host.invalid"])
def test_a_host_that_others_reach_needs_a_token(
    programs: Programs, tiny_model: Path, host: str
) -> None:
    outcome = programs.run("captioner", "serve", "--host", host, "--checkpoint", tiny_model)
    assert "give a token with --token" in outcome.sentence()


def test_with_a_token_such_a_host_is_served(
    programs: Programs, tiny_model: Path, drawn_photos: Path
) -> None:
    given = {"CAPTIONER_TOKEN": "sesame"}
    options = ["--host", "0.0.0.0", "--checkpoint", tiny_model]
    with started(programs, *options, **given) as (address, _):
        port = urlsplit(address).port
        for headers, status in (({}, 401), ({"Authorization": "Bearer sesame"}, 200)):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            connection.request("GET", "/v1/models", headers={"Host": "photos.example", **headers})
            assert connection.getresponse().status == status


def test_unusable_options_of_serve_are_one_sentence(
    programs: Programs, tiny_model: Path, tmp_path: Path
) -> None:
    def sentence(*arguments: object) -> str:
        return programs.run("captioner", "serve", "--device", "cpu", *arguments).sentence()

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in sentence("--port", port, "--checkpoint", tiny_model)
    assert "no such model folder" in sentence("--port", 0, "--checkpoint", tmp_path / "none")
    assert "there is no model 'mine'" in sentence("--port", 0, "--model", "mine")
    twice = ["--checkpoint", tiny_model, "--checkpoint", tiny_model]
    assert "two models have the name 'tiny'" in sentence("--port", 0, *twice)
    assert "ASCII" in sentence("--port", 0, "--token", "two words", "--checkpoint", tiny_model)
    # Nobody could give it, on loopback either.
    assert "--token: is empty" in sentence("--port", 0, "--token", "", "--checkpoint", tiny_model)


def test_without_the_extra_it_names_the_package_to_install() -> None:
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


NO_PROCESSES = """
from multiprocessing.popen_forkserver import Popen
def launch(self, process):
    raise BlockingIOError(11, "Resource temporarily unavailable")
Popen._launch = launch
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_that_cannot_start_says_why_and_ends_with_2(tmp_path: Path, workers: int) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_PROCESSES)
    command = [sys.executable, "-m", "captioner", "serve", "--port", "0", "--device", "cpu"]
    ended = subprocess.run(
        [*command, "--model", "soft", "--workers", str(workers)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "Traceback" not in ended.stderr
    said = {line for line in ended.stderr.splitlines() if not line.startswith("Child process")}
    (sentence,) = said  # of each replica
    assert sentence.startswith("error: the server cannot start its processes")
    assert "Resource temporarily unavailable" in sentence


def test_clients_that_stop_in_the_middle_leave_no_trace(
    programs: Programs, tiny_model: Path, drawn_photos: Path
) -> None:
    photo = (drawn_photos / "01.jpg").read_bytes()
    with started(programs, "--checkpoint", tiny_model) as (address, _):
        host, _, port = urlsplit(address).netloc.partition(":")

        def leave() -> None:
            with socket.create_connection((host, int(port))) as connection:
                head = f"POST /v1/captions HTTP/1.1\r\nHost: {host}\r\nContent-Type: image/jpeg\r\n"
                connection.sendall(f"{head}Content-Length: 5000\r\n\r\n".encode() + photo[:100])

        threads = [threading.Thread(target=leave) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ask(address, photo)
        end = time.monotonic() + 60
        inside = ""
        while inside != "captioner_requests_in_progress 0.0":
            assert time.monotonic() < end, inside
            connection = http.client.HTTPConnection(host, int(port), timeout=60)
            connection.request("GET", "/metrics")
            figures = connection.getresponse().read().decode().splitlines()
            (inside,) = (f for f in figures if f.startswith("captioner_requests_in_progress "))
