"""The HTTP around the service: routes, their document, the page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, TypeVar

import anyio
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from captioner import __version__
from captioner.captioner import Captioner
from captioner.serving import metrics, schemas
from captioner.serving.batching import Full
from captioner.serving.problems import (
    Problem,
    answer_with_problems,
    problem_responses,
)
from captioner.serving.requests import operation, photo_and_options
from captioner.serving.security import SecureHeaders, check_loopback_name, token_check
from captioner.serving.service import Limits, Service
from captioner.visualization import viewer_script

Options = TypeVar("Options", bound=BaseModel)

# What the page is made of: address, package, file, media type.
PAGE = (
    ("/", "captioner.serving", "static/index.html", "text/html; charset=utf-8"),
    ("/page.js", "captioner.serving", "static/page.js", "text/javascript; charset=utf-8"),
    ("/page.css", "captioner.serving", "static/page.css", "text/css; charset=utf-8"),
    ("/icon.svg", "captioner.serving", "static/icon.svg", "image/svg+xml"),
    ("/viewer.css", "captioner.visualization", "viewer.css", "text/css; charset=utf-8"),
)
_PHOTO_PROBLEMS = (400, 401, 408, 413, 415, 422, 503, 504)
_BINARY = {"schema": {"type": "string", "format": "binary"}}


def create_app(
    models: Mapping[str, Captioner],
    *,
    token: str | None = None,
    limits: Limits | None = None,
    any_host: bool = False,
) -> FastAPI:
    """The application; the first model is the default.

    token: what requests under /v1 and /metrics bring, or None for no login. any_host: answer under
    every host name, not only those of loopback.
    """
    service = Service(models, limits or Limits())

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            await service.close()

    app = FastAPI(
        title="captioner",
        version=__version__,
        summary="Captions for photos, and where the model looked for each word.",
        lifespan=life,
        dependencies=[] if any_host else [Depends(check_loopback_name)],
        docs_url=None,  # those pages load scripts from another host
        redoc_url=None,
    )
    app.state.service = service
    answer_with_problems(app)
    app.add_middleware(SecureHeaders)
    app.add_middleware(metrics.MeasureRequests, metrics=service.metrics)
    for router in (_photos(service), _lists(service)):
        app.include_router(router, dependencies=[Depends(token_check(token))])
    app.include_router(_state(service))
    for address, package, name, media_type in PAGE:
        _add_file(app, address, files(package).joinpath(name).read_bytes(), media_type)
    _add_file(app, "/viewer.js", viewer_script().encode(), "text/javascript; charset=utf-8")
    _describe(app, token)
    return app


def _photos(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["photos"])
    problems = problem_responses(*_PHOTO_PROBLEMS)

    @router.post(
        "/captions",
        summary="Caption a photo",
        operation_id="captions",
        response_class=JSONResponse,
        responses={
            200: {
                "model": schemas.CaptionsAnswer,
                "content": {"application/json": {"example": schemas.CAPTIONS_EXAMPLE}},
            },
            **problems,
        },
        openapi_extra=operation(schemas.CaptionOptions, {"beam_size": 5}),
    )
    async def captions(request: Request) -> Response:
        return await _answer(
            service,
            request,
            schemas.CaptionOptions,
            lambda data, options: _json(service.captions(data, options)),
        )

    @router.post(
        "/scores",
        summary="Read a caption that you bring",
        operation_id="scores",
        response_class=JSONResponse,
        responses={
            200: {
                "model": schemas.ScoreAnswer,
                "content": {"application/json": {"example": schemas.SCORE_EXAMPLE}},
            },
            **problems,
        },
        openapi_extra=operation(
            schemas.ScoreOptions, {"caption": schemas.CAPTION_EXAMPLE["caption"]}
        ),
    )
    async def scores(request: Request) -> Response:
        return await _answer(
            service,
            request,
            schemas.ScoreOptions,
            lambda data, options: _json(service.score(data, options)),
        )

    @router.post(
        "/pictures",
        summary="Draw where the model looked",
        operation_id="pictures",
        response_class=Response,
        responses={
            200: {
                "description": "A sheet (png), an animation (gif) or a page of one file (html).",
                "content": {"image/png": _BINARY, "image/gif": _BINARY, "text/html": {}},
            },
            **problems,
        },
        openapi_extra=operation(schemas.PictureOptions, {"format": "png"}),
    )
    async def pictures(request: Request) -> Response:
        async def drawn(data: bytes, options: schemas.PictureOptions) -> Response:
            content, media_type = await service.picture(data, options)
            name = f'attachment; filename="caption.{options.format}"'
            headers = {"Content-Disposition": name}
            return Response(content, media_type=media_type, headers=headers)

        return await _answer(service, request, schemas.PictureOptions, drawn)

    return router


async def _json(answer: Awaitable[dict[str, Any]]) -> Response:
    return JSONResponse(await answer)


async def _answer(
    service: Service,
    request: Request,
    kind: type[Options],
    ask: Callable[[bytes, Options], Awaitable[Response]],
) -> Response:
    """Read and answer one request about a photo, within the bounds of all of them."""
    limits = service.limits
    try:
        with service.gate:
            try:
                with anyio.fail_after(limits.deadline_s):
                    data, options = await photo_and_options(request, kind, limits.max_bytes)
            except TimeoutError:
                raise Problem(
                    408,
                    f"the photo did not arrive within {limits.deadline_s:g} s",
                    headers={"Connection": "close"},
                ) from None
            try:
                with anyio.fail_after(limits.deadline_s):
                    return await ask(data, options)
            except TimeoutError:
                raise Problem(
                    504,
                    f"the answer was not ready within {limits.deadline_s:g} s; try again, or ask "
                    "for a smaller beam_size",
                ) from None
    except Full:
        service.metrics.refused.inc()
        raise Problem(503, "too many photos are waiting; try again in a moment") from None


def _lists(service: Service) -> APIRouter:
    router = APIRouter(tags=["service"])

    @router.get(
        "/v1/models",
        summary="The models that are loaded",
        operation_id="models",
        response_model=schemas.ModelsAnswer,
        responses=problem_responses(401),
    )
    async def models() -> dict[str, Any]:
        return {"models": [_about(name, model) for name, model in service.models.items()]}

    @router.get(
        "/metrics",
        summary="Figures for Prometheus",
        operation_id="metrics",
        response_class=Response,
        responses={
            200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
            **problem_responses(401),
        },
    )
    async def figures() -> Response:
        return Response(service.metrics.text(), media_type=metrics.CONTENT_TYPE)

    return router


def _about(name: str, captioner: Captioner) -> dict[str, Any]:
    config = captioner.config
    return {
        "name": name,
        "attention": config.attention.select,
        "decoder": config.decoder.kind,
        "beam_size": config.decoding.beam_size,
        "max_words": config.decoding.max_words,
        "words": len(captioner.vocabulary),
    }


def _state(service: Service) -> APIRouter:
    router = APIRouter(tags=["service"])

    @router.get(
        "/health",
        summary="Whether the process lives",
        operation_id="health",
        response_model=schemas.StateBody,
    )
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @router.get(
        "/ready",
        summary="Whether it takes photos now",
        operation_id="ready",
        response_model=schemas.StateBody,
        responses=problem_responses(503),
    )
    async def ready() -> dict[str, str]:
        if not service.ready or service.gate.inside >= service.gate.limit:
            raise Problem(503, "not now: it is starting, stopping or full")
        return {"status": "ready"}

    return router


def _add_file(app: FastAPI, address: str, content: bytes, media_type: str) -> None:
    async def file() -> Response:
        return Response(content, media_type=media_type, headers={"Cache-Control": "no-cache"})

    app.add_api_route(address, file, include_in_schema=False, methods=["GET", "HEAD"])


def _describe(app: FastAPI, token: str | None) -> None:
    """Put the token into the OpenAPI document, where there is one."""
    if token is None:
        return
    plain = app.openapi

    def described() -> dict[str, Any]:
        document = plain()
        schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes["token"] = {"type": "http", "scheme": "bearer"}
        for address, operations in document["paths"].items():
            if address.startswith(("/v1", "/metrics")):
                for each in operations.values():
                    each["security"] = [{"token": []}]
        return document

    app.openapi = described  # type: ignore[method-assign]
