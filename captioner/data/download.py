"""Fetch a photo by its address."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import time
import urllib.error
import urllib.request

from captioner.errors import ImageError

_CHUNK_BYTES = 2**16
# Some sites refuse Python's own name. A site can see who asks, and block it.
_HEADERS = {"User-Agent": "captioner (image captioning)", "Accept": "image/*,*/*;q=0.5"}


def is_url(text: str) -> bool:
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
    if not is_url(url):
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
    """Return whether an address is one of the open internet."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_global and not parsed.is_multicast
