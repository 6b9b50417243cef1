"""Who may send requests, and what a browser may do with the responses."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from ipaddress import ip_address

from fastapi import Request
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from captioner.serving.answers import Problem

# Names under which a server on loopback answers. Any other name belongs to another host that was
# pointed here, so that its pages could read responses that need no login (DNS rebinding).
LOOPBACK_HOSTS = ("localhost", "*.localhost", "127.0.0.1", "[::1]")

RESPONSE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server at the address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # another name, or none
        return False


class BearerToken(HTTPBearer):
    """A dependency that requires `Authorization: Bearer TOKEN`."""

    def __init__(self, token: str) -> None:
        super().__init__(scheme_name="token", auto_error=False)
        self._token = token.encode()

    async def __call__(self, request: Request) -> None:  # type: ignore[override]
        given = await super().__call__(request)
        # Compared in constant time, so that nobody guesses a token letter by letter.
        if given is None or not hmac.compare_digest(given.credentials.encode(), self._token):
            detail = "this server asks for a token: send the header Authorization: Bearer TOKEN"
            raise Problem(401, detail, headers={"WWW-Authenticate": "Bearer"})


class BrowserRules:
    """Middleware that refuses requests of other sites' pages (403) and adds RESPONSE_HEADERS.

    A browser sends them with `Sec-Fetch-Site` and mostly with `Origin`; the order of the checks is
    that of Go's `net/http.CrossOriginProtection`, applied to every method. Requests with neither
    header come from programs, and are let through, as is following a link to this server.
    """

    def __init__(self, app: ASGIApp, allowed_origins: Sequence[str]) -> None:
        self.app, self.allowed_origins = app, frozenset(allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(RESPONSE_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        app = self.app
        if scope["type"] == "http" and not self._allowed(scope["method"], Headers(scope=scope)):
            origin = Headers(scope=scope).get("origin", "another site")
            app = Problem(403, f"requests from pages of {origin} are not allowed").response()
        await app(scope, receive, send_with_headers)

    def _allowed(self, method: str, headers: Headers) -> bool:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None and origin in self.allowed_origins:
            return True
        if site is not None:
            link = method in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate"
            return site in ("same-origin", "none") or link
        host = headers.get("host", "").lower()
        return origin is None or origin.lower().partition("://")[2] == host
