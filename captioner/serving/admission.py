"""Which requests the server takes: limits on their number, on each client's share and on memory."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address

import anyio

STALLED_S = 1.0  # without a byte for this long, an upload may have to make room


class FullError(Exception):
    """The server has as many requests as it accepts at once."""


def client_share(limit: int) -> int:
    """Return how many of `limit` places one client may have: three quarters of them.

    >>> client_share(128), client_share(2)
    (96, 2)
    """
    return limit - limit // 4


def client_key(address: str) -> str:
    """Return what counts as one client: an IPv4 address, or the /64 network of an IPv6 address.

    >>> client_key("192.0.2.7"), client_key("2001:db8::1") == client_key("2001:db8::2")
    ('192.0.2.7', True)
    """
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        mapped = parsed.ipv4_mapped
        return str(mapped) if mapped else parsed.packed[:8].hex()
    return str(parsed)


class Upload:
    """A request's body on its way, and its share of the memory.

    Attributes:
        client: Who sends it, as `client_key` gives it.
        scope: What reads the body; it is cancelled to make room for others.
        dropped: Whether that has happened.
    """

    def __init__(self, admission: Admission, client: str) -> None:
        self.client = client
        self.scope = anyio.CancelScope()
        self.dropped = False
        self.size = 0
        self.complete = False
        self.last_progress = time.monotonic()
        self._admission = admission

    def add(self, size: int) -> None:
        """Count the bytes of a chunk that has arrived.

        Raises:
            FullError: There is no memory for them.
        """
        self.last_progress = time.monotonic()
        self.size += size
        self._admission.hold(self, size)


class Admission:
    """Counts the requests that the server works on and the bytes that it holds for them.

    A request is counted once its body is complete, so that unfinished uploads keep nobody out: they
    are limited by their memory alone, and by the number of connections (see `connections`).

    Args:
        max_requests: Complete requests at once; one client has at most `client_share` of them.
        max_held_bytes: Bytes of all bodies, unfinished ones included; one client's are at most
            `client_share` of them. Where they do not fit, the upload that has been silent for
            longest makes room.
    """

    def __init__(self, max_requests: int, max_held_bytes: int) -> None:
        self.max_requests, self.max_held_bytes = max_requests, max_held_bytes
        self.requests = 0
        self._by_client: Counter[str] = Counter()
        self._uploads: set[Upload] = set()
        self._held_bytes: Counter[str] = Counter()  # by client

    @property
    def in_progress(self) -> int:
        """Requests from their first byte to their answer."""
        return len(self._uploads)

    @property
    def full(self) -> bool:
        return self.requests >= self.max_requests

    @contextmanager
    def upload(self, client: str) -> Iterator[Upload]:
        """Hold a body in memory, from its first byte to the answer.

        Raises:
            FullError: No request would be taken now.
        """
        if self.full:
            raise FullError
        upload = Upload(self, client)
        self._uploads.add(upload)
        try:
            yield upload
        finally:
            self._uploads.discard(upload)
            self._release(upload)

    @contextmanager
    def request(self, client: str) -> Iterator[None]:
        """Count a complete request until its answer.

        Raises:
            FullError: All clients, or this one, have as many requests as they may.
        """
        if self.full or self._by_client[client] >= client_share(self.max_requests):
            raise FullError
        self.requests += 1
        self._by_client[client] += 1
        try:
            yield
        finally:
            self.requests -= 1
            self._by_client -= Counter([client])  # which forgets clients without any

    def hold(self, upload: Upload, size: int) -> None:
        """Count `size` more bytes of an upload; drop silent uploads where they do not fit.

        Raises:
            FullError: They do not fit, and no other upload is silent.
        """
        self._held_bytes[upload.client] += size
        if self._fits(upload):
            return
        silent_since = time.monotonic() - STALLED_S
        silent = [
            each
            for each in self._uploads
            if each is not upload and not each.complete and each.last_progress <= silent_since
        ]
        for each in sorted(silent, key=lambda each: each.last_progress):
            if self._fits(upload):
                return
            if each.client == upload.client or not self._all_fit:
                self._release(each)
                each.dropped = True
                each.scope.cancel()
        if not self._fits(upload):
            raise FullError

    @property
    def _all_fit(self) -> bool:
        return self._held_bytes.total() <= self.max_held_bytes

    def _fits(self, upload: Upload) -> bool:
        share = client_share(self.max_held_bytes)
        return self._all_fit and self._held_bytes[upload.client] <= share

    def _release(self, upload: Upload) -> None:
        self._held_bytes -= Counter({upload.client: upload.size})
        upload.size = 0
