"""Files on this machine or behind a URL that fsspec understands (s3://, gs://, ...), and locks."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import os
import posixpath
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from captioner.errors import CaptionerError, ConfigError, DataError, ImageError, error_summary
from captioner.files import replacing
from captioner.log import logger

MAX_FILE_BYTES = 2**28  # of a photo behind a URL
_CHUNK_BYTES = 2**16
# Some sites refuse Python's own name. A site can see who asks, and block it.
_HEADERS = {"User-Agent": "captioner (image captioning)", "Accept": "image/*,*/*;q=0.5"}


def is_url(name: str) -> bool:
    """Return whether a name is a URL rather than a path."""
    return bool(re.match(r"[a-z][a-z0-9+.-]+://", name))


def absolute(name: str) -> str:
    """Return a name that is valid in all processes: URLs as they are, paths absolute."""
    return name if is_url(name) else os.path.abspath(name)


def file_system(name: str) -> tuple[Any, str]:
    """Return the fsspec file system of a path or URL, and the path in it."""
    import fsspec  # not among what captions on a CPU

    try:
        return fsspec.core.url_to_fs(name)
    except (ImportError, ValueError) as error:
        raise CaptionerError(f"{name}: {error}") from None


@contextlib.contextmanager
def accessing(name: str, what: str = "read") -> Iterator[None]:
    """Context in which what a file system raises becomes a DataError, but for FileNotFoundError.

    That of a URL may raise anything, and a DataError then says that it cannot be `what`.
    """
    try:
        yield
    except (CaptionerError, FileNotFoundError, UnicodeDecodeError):
        raise
    except Exception as error:
        if not (is_url(name) or isinstance(error, OSError)):
            raise
        reason = getattr(error, "strerror", None) or error_summary(error, part="line")
        raise DataError(
            f"{name}: cannot be {what} ({reason}); check the address, the space, the rights "
            "and, of a URL, the credentials and the network"
        ) from None


def expand(pattern: str) -> list[str]:
    """Return the paths or URLs of a pattern with {00..99}, * or ?, in order; at least one."""
    from braceexpand import braceexpand  # of the extra `batch`

    try:
        names = list(braceexpand(pattern)) if "{" in pattern else [pattern]
    except ValueError:
        raise DataError(f"{pattern}: a brace is not closed") from None
    found: list[str] = []
    for name in names:
        system, path = file_system(name)
        with accessing(name):
            paths = sorted(system.glob(path))  # of a plain path: itself, where it exists
        if not paths:
            raise DataError(f"{name}: no such file")
        found += [system.unstrip_protocol(each) if is_url(name) else each for each in paths]
    return found


class Folder:
    """A folder to write to (a path or URL), made by its first file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.system, self.root = file_system(name)
        self.is_local = self.system.protocol == ("file", "local")

    def path(self, name: str) -> str:
        """Return the path of a file in the folder, for `self.system`."""
        return posixpath.join(self.root, name)

    def read(self, name: str) -> bytes | None:
        """Return a file's content, None where there is no such file; a DataError says why not."""
        with contextlib.suppress(FileNotFoundError), accessing(f"{self.name}/{name}"):
            return self.system.cat_file(self.path(name))
        return None

    def write(self, name: str, content: bytes) -> None:
        """Write a file; a DataError says why it cannot be written."""
        path = self.path(name)
        with accessing(f"{self.name}/{name}", "written"):
            if self.is_local:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                with replacing(Path(path), durable=True) as file:
                    file.write(content)
            else:
                self.system.pipe_file(path, content)

    def names(self, folder: str) -> set[str]:
        """Return the names of the files in a folder of this one, none where it is missing."""
        self.system.invalidate_cache()
        paths: list[str] = []
        with contextlib.suppress(FileNotFoundError), accessing(self.name):
            paths = self.system.ls(self.path(folder), detail=False)
        return {posixpath.basename(path) for path in paths}


@contextlib.contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold a lock on a file against other processes; it ends with this one, however that ends.

    Args:
        wait: Wait for a process that holds the lock, and say so on stderr.

    Raises:
        BlockingIOError: Another process holds it, and `wait` is false.
        OSError: The file cannot be made.
    """
    from filelock import FileLock, Timeout

    path.open("ab").close()  # raises where no file can be made, whatever the lock does
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if not wait:
            raise BlockingIOError(f"{path} is locked") from None
        logger.warning(f"{path.parent}: waiting for another process that writes there")
        lock.acquire()
    except OSError as error:  # some network file systems
        logger.warning(
            f"{path.parent} cannot be locked ({error.strerror}); let no other process write there"
        )
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def locked_folder(folder: Path, *, name: str, remedy: str) -> Iterator[None]:
    """Make a folder where it is missing, and keep other runs away from it.

    Args:
        name, remedy: What a message calls the folder, and what to do instead.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder / ".lock", wait=False))
        except OSError as error:
            reason = error.strerror or "another run writes there"  # BlockingIOError has none
            raise ConfigError(f"{name}: cannot be written to ({reason}); {remedy}") from None
        yield


def fetch(urls: Iterable[str]) -> dict[str, bytes | Exception]:
    """Read files behind URLs, up to MAX_FILE_BYTES each, concurrently; an error in place of one."""
    by_system: dict[str, list[str]] = {}
    for url in dict.fromkeys(urls):
        by_system.setdefault(url.partition("://")[0], []).append(url)
    found: dict[str, bytes | Exception] = {}
    for names in by_system.values():
        system, _ = file_system(names[0])
        # Not `cat`, which takes [ and * in a name for patterns.
        paths = [system._strip_protocol(url) for url in names]
        contents = system.cat_ranges(paths, 0, MAX_FILE_BYTES, on_error="return")
        found.update(zip(names, contents, strict=True))
    return found


def is_web_address(text: str) -> bool:
    """Return whether a text is the address of a file on the web."""
    return text.lower().startswith(("http://", "https://"))


def fetch_image(url: str, max_bytes: int, timeout: float, *, allow_private: bool = False) -> bytes:
    """Return the bytes of the file at an address; an ImageError, which lacks it, says why not.

    Redirects are followed.

    Args:
        timeout: Seconds for all of it.
        allow_private: Also fetch from this machine and from private networks, and through the proxy
            that the environment names. Leave it out where strangers choose the address.
    """
    if not is_web_address(url):
        raise ImageError("is no address of a photo: it begins with neither http:// nor https://")
    end = time.monotonic() + timeout
    handlers = () if allow_private else (urllib.request.ProxyHandler({}), _PublicHandler)
    opener = urllib.request.build_opener(*handlers)
    body = bytearray()
    try:
        request = urllib.request.Request(url, headers=_HEADERS)
        with opener.open(request, timeout=timeout) as response:
            if response.headers.get_content_type() == "text/html":
                raise ImageError("is a web page, not a photo: give the address of the photo itself")
            while chunk := response.read1(_CHUNK_BYTES):
                body += chunk
                if len(body) > max_bytes:
                    raise ImageError(f"is over the limit of {max_bytes / 10**6:g} MB")
                if time.monotonic() > end:
                    raise TimeoutError
    except urllib.error.HTTPError as error:
        raise ImageError(
            f"cannot be fetched: the site answers {error.code} {error.reason}"
        ) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            reason = f"not within {timeout:g} s"
        raise ImageError(f"cannot be fetched ({reason})") from None
    return bytes(body)


class _PublicHTTPConnection(http.client.HTTPConnection):
    """Talks to public addresses alone, also after a redirect."""

    def connect(self) -> None:
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        addresses = [str(address[0]) for *_, address in found]
        if public := all(map(_is_public, addresses)):
            super().connect()  # the name may lead elsewhere a moment later
            public = _is_public(self.sock.getpeername()[0])
        if not public:
            self.close()
            raise ImageError("is an address of a private network, which is not fetched")


class _PublicHTTPSConnection(http.client.HTTPSConnection, _PublicHTTPConnection):
    """Checks the address before TLS, whose bytes would be the first that are sent."""


class _PublicHandler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_PublicHTTPConnection, request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_PublicHTTPSConnection, request)


def _is_public(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_global and not parsed.is_multicast
