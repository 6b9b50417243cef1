"""The answers of the REST interface: their models, and errors as problem documents (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Generic, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from captioner.types import Geometry

MEDIA_TYPE = "application/problem+json"


class ProblemBody(BaseModel):
    """RFC 9457"""

    type: str
    title: str
    status: int
    detail: str = Field(description="One sentence: what is wrong, what to do.")
    errors: list[dict[str, str]] | None = Field(
        None, description="The name and detail of each option that cannot be used."
    )


class Problem(HTTPException):
    """A request that is answered with a problem document, whose fields ProblemBody explains."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        errors: Sequence[Mapping[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers = {"Retry-After": "1"}
        super().__init__(status, detail, headers)
        self.errors = errors

    def document(self) -> dict[str, Any]:
        # RFC 9457, section 4.2.1: without a type of its own, the title is the status's phrase.
        title, status = HTTPStatus(self.status_code).phrase, self.status_code
        content = {"type": "about:blank", "title": title, "status": status, "detail": self.detail}
        return content | ({"errors": self.errors} if self.errors else {})

    def response(self) -> JSONResponse:
        return JSONResponse(self.document(), self.status_code, self.headers, MEDIA_TYPE)


def option_problem(name: str, detail: str) -> Problem:
    """Return the problem (422) of one option that cannot be used."""
    return Problem(422, f"{name}: {detail}", errors=[{"name": name, "detail": detail}])


async def _http_error(request: Request, error: HTTPException) -> Response:
    if not isinstance(error, Problem):  # of FastAPI itself, such as 404
        detail = f"{error.detail}: {request.method} {request.url.path}"
        error = Problem(error.status_code, detail, headers=error.headers)
    return error.response()


async def _client_left(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=499)  # nginx's status; nobody receives it, the metrics count it


async def _unforeseen(request: Request, error: Exception) -> Response:
    return Problem(500, "the server made a mistake; its log says more").response()


EXCEPTION_HANDLERS: dict[Any, Any] = {
    HTTPException: _http_error,
    ClientDisconnect: _client_left,
    Exception: _unforeseen,
}
# What OpenAPI says of every operation.
_CONTENT = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}}}
RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "The request cannot be used.", "content": _CONTENT},
    "5XX": {"description": "Too much is asked at once, or of a photo.", "content": _CONTENT},
}


class CaptionBody(BaseModel):
    """One caption, with the log-probability and attention of each of its T words."""

    model_config = ConfigDict(extra="forbid")

    caption: str
    words: list[str]
    log_probs: list[float] = Field(description="[T], in nats")
    end_log_prob: float | None = Field(description="of the end; null for a caption cut off")
    confidence: float | None = Field(
        None,
        ge=0,
        le=1,
        description="estimated probability that the caption is right; null or absent for models "
        "without a calibrator",
    )
    confidence_threshold: float | None = Field(
        None, description="the caption is unsure where its confidence is below this"
    )
    beta: list[float] | None = Field(description="[T], the gate; null for models without it")
    cells: list[Any] | None = Field(None, description="[T], cells that hard attention selected")
    paths: list[list[int]] | None = Field(
        None, description="[M][T], cells of sampled attention paths"
    )
    maps: list[list[list[float]]] | None = Field(
        None, description="[T][rows][columns], each word's map sums to 1"
    )
    heads: list[Any] | None = Field(None, description="[T][layers][heads][rows][columns]")
    geometry: Geometry | None = Field(
        None, description="The rectangle of the upright photo that the maps cover, in pixels"
    )


class CaptionsAnswer(BaseModel):
    model: str
    beam_size: int
    captions: list[CaptionBody] = Field(description="best first")


class ScoreAnswer(BaseModel):
    model: str
    caption: CaptionBody
    log_prob: float = Field(description="of the caption with its end token, in nats")
    unknown_words: list[str] = Field(
        description="words outside the vocabulary, scored as the unknown word"
    )


Answer = TypeVar("Answer", CaptionsAnswer, ScoreAnswer)


class FailedPhoto(BaseModel):
    image: str
    error: ProblemBody


class ManyAnswer(BaseModel, Generic[Answer]):
    """The answers for several photos, in their order; those that cannot be used have an error."""

    photos: list[Answer | FailedPhoto]


class ModelBody(BaseModel):
    name: str
    attention: str = Field(description="soft or hard")
    decoder: str
    beam_size: int = Field(description="used where a request gives none")
    max_words: int
    words: int = Field(description="size of the vocabulary")


class ModelsAnswer(BaseModel):
    models: list[ModelBody] = Field(description="The first is the default.")


class StateBody(BaseModel):
    status: str
