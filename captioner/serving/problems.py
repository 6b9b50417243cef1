"""Errors as problem documents (RFC 9457, `application/problem+json`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
# nginx's status for a request whose client left before the answer. Nobody receives it; the metrics
# count it apart from the server's errors.
CLIENT_CLOSED_REQUEST = 499


class Problem(Exception):
    """A request that is answered with a problem document.

    Args:
        detail: One sentence for the client.
        errors: The name and detail of each option that cannot be used.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        errors: Sequence[Mapping[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.errors = status, detail, errors
        self.headers = dict(headers or {})
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            self.headers.setdefault("Retry-After", str(RETRY_AFTER_S))

    def document(self) -> dict[str, Any]:
        content: dict[str, Any] = {
            "type": "about:blank",  # RFC 9457, section 4.2.1: the title is the status's phrase
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }
        if self.errors:
            content["errors"] = self.errors
        return content

    def response(self) -> JSONResponse:
        return JSONResponse(
            self.document(), status_code=self.status, headers=self.headers, media_type=MEDIA_TYPE
        )


def option_problem(name: str, detail: str) -> Problem:
    """Return the problem (422) of one option that cannot be used."""
    return Problem(422, f"{name}: {detail}", errors=[{"name": name, "detail": detail}])


def add_problem_handlers(app: FastAPI) -> None:
    """Answer every error of the app with a problem document; an unforeseen one is a 500."""

    @app.exception_handler(Problem)
    async def problem(_: Request, error: Problem) -> JSONResponse:
        return error.response()

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        detail = {
            404: f"there is nothing at {request.url.path}",
            405: f"{request.url.path} does not take {request.method}",
        }.get(error.status_code, str(error.detail))
        return Problem(error.status_code, detail, headers=error.headers).response()

    @app.exception_handler(ClientDisconnect)
    async def client_left(_: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    @app.exception_handler(Exception)
    async def unforeseen(_: Request, error: Exception) -> JSONResponse:
        return Problem(500, "the server made a mistake; its log says more").response()


PROBLEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "RFC 9457",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "One sentence: what is wrong, what to do."},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "detail"],
                "properties": {"name": {"type": "string"}, "detail": {"type": "string"}},
            },
        },
    },
}

_EXAMPLES = {
    400: "the multipart body cannot be read: Missing boundary in multipart.",
    401: "this server asks for a token: send the header Authorization: Bearer TOKEN",
    403: "requests from pages of https://other.example are not allowed",
    408: "the photo did not arrive within 30 s",
    413: "the body is over the limit of 20 MB; send a smaller photo",
    415: "the photo is not of a known format (JPEG, PNG, GIF, WEBP, BMP, TIFF, PPM, AVIF)",
    421: "this server answers at localhost and 127.0.0.1 only",
    422: "the photo has 10000 x 9000 pixels, over the limit of 50 megapixels; make it smaller",
    503: "too many photos are waiting; try again in a moment",
    504: "the answer was not ready within 30 s; try again, or ask for a smaller beam_size",
}


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what an OpenAPI operation says of these statuses."""
    responses: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        problem = Problem(status, _EXAMPLES[status])
        example = problem.document()
        responses[status] = {
            "description": example["title"],
            "content": {MEDIA_TYPE: {"schema": PROBLEM_SCHEMA, "example": example}},
        }
        if "Retry-After" in problem.headers:
            responses[status]["headers"] = {
                "Retry-After": {"schema": {"type": "integer"}, "description": "seconds"}
            }
    return responses
