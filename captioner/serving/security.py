"""Who may ask, and what a browser may do with the answers."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Callable
from ipaddress import ip_address

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from captioner.serving.problems import Problem

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def is_loopback(host: str) -> bool:
    """Whether a server at this address is reached from this machine alone."""
    try:
        found = socket.getaddrinfo(host or None, None, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        return False
    addresses = {str(each[4][0]).partition("%")[0] for each in found}
    return bool(addresses) and all(ip_address(address).is_loopback for address in addresses)


def check_loopback_name(request: Request) -> None:
    """A dependency of a loopback server: it answers under loopback's names alone.

    Any other name is another host's whose name was pointed here, so that its pages could read
    answers that need no login (DNS rebinding).
    """
    name = request.url.hostname or ""
    if name == "localhost" or name.endswith(".localhost"):
        return
    try:
        if ip_address(name).is_loopback:
            return
    except ValueError:
        pass
    raise Problem(421, "this server answers at localhost and loopback addresses only")


def token_check(token: str | None) -> Callable[[Request], None]:
    """A dependency that lets in who brings the token; everybody where there is none."""

    def check(request: Request) -> None:
        if token is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # Compared in constant time, so that nobody guesses a token letter by letter.
        same = hmac.compare_digest(given.strip().encode("latin-1"), token.encode())
        if scheme.lower() != "bearer" or not same:
            raise Problem(
                401,
                "this server asks for a token: send the header Authorization: Bearer TOKEN",
                headers={"WWW-Authenticate": "Bearer"},
            )

    return check


class SecureHeaders:
    """Middleware that puts HEADERS on every answer, and keeps answers out of caches."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self.app(scope, receive, with_headers)
