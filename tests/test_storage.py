"""Photos fetched by their address, and locks that keep other processes away."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from captioner.errors import ImageError
from captioner.storage import fetch_image, is_web_address, locked

PHOTO = bytes(range(256)) * 40


class Site(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        name = self.path.strip("/")
        if name == "missing":
            self.send_error(404)
            return
        if name.startswith("to-"):
            self.send_response(302)
            self.send_header("Location", "/photo" if name == "to-photo" else "file:///etc/passwd")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if name == "page" else "image/jpeg")
        self.end_headers()
        if name == "slow":
            for _ in range(50):
                self.wfile.write(b"x")
                threading.Event().wait(0.1)
        self.wfile.write(PHOTO)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def fetch(url: str, *, timeout: float = 30.0, allow_private: bool = True) -> bytes:
    return fetch_image(url, len(PHOTO), timeout, allow_private=allow_private)


def test_photo_and_redirect_to_it_are_fetched(site: str) -> None:
    assert fetch(f"{site}/photo") == PHOTO
    assert fetch(f"{site}/to-photo") == PHOTO
    with pytest.raises(ImageError, match="over the limit"):
        fetch_image(f"{site}/photo", len(PHOTO) - 1, 30, allow_private=True)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("missing", "404"), ("page", "web page"), ("to-file", "file"), ("slow", "within 0.5 s")],
)
def test_address_without_a_photo_says_why(site: str, name: str, reason: str) -> None:
    with pytest.raises(ImageError, match=reason):
        fetch(f"{site}/{name}", timeout=0.5)


def test_other_addresses_are_refused() -> None:
    for url in ("file:///etc/passwd", "http://", "https://a b/", "a.jpg"):
        with pytest.raises(ImageError):
            fetch(url)
    assert is_web_address("HTTPS://example.org/a.jpg")
    assert not is_web_address("photos/http.jpg")


def test_private_addresses_are_refused_however_they_are_named(
    site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = site.rpartition(":")[2]
    for host in ("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "10.0.0.1"):
        with pytest.raises(ImageError, match="private network"):
            fetch(f"http://{host}:{port}/photo", allow_private=False)
    # A public name that leads here, and a proxy that would fetch for us.
    monkeypatch.setenv("http_proxy", site)
    here = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", int(port)))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: here)
    for scheme in ("http", "https"):
        with pytest.raises(ImageError, match="private network"):
            fetch(f"{scheme}://photos.example:{port}/photo", allow_private=False)


HOLDER = """
import sys, time
from pathlib import Path
from captioner.storage import locked
with locked(Path(sys.argv[1]), wait=False):
    print("locked", flush=True)
    sys.stdin.readline()
"""


def test_a_lock_keeps_another_process_out_until_it_ends_in_any_way(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    for kill in (False, True):
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout.readline() == "locked\n"
            with pytest.raises(BlockingIOError), locked(path, wait=False):
                pass
            other.kill() if kill else other.communicate("go\n")
        with locked(path, wait=False):
            pass
