"""The HTTP application: middlewares, routes, their OpenAPI document and the web page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, TypeVar

import anyio
from fastapi import APIRouter, Depends, FastAPI, Request, params
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from captioner import __version__
from captioner.captioner import Captioner
from captioner.errors import error_summary
from captioner.log import logger
from captioner.serving import schemas
from captioner.serving.admission import FullError, client_key
from captioner.serving.problems import Problem, add_problem_handlers, problem_responses
from captioner.serving.requests import describe_request, read_image_and_options
from captioner.serving.security import (
    LOOPBACK_HOSTS,
    AddSecurityHeaders,
    BearerToken,
    CheckHost,
    CheckOrigin,
)
from captioner.serving.service import Limits, Service
from captioner.visualization import viewer_script

Options = TypeVar("Options", bound=BaseModel)
Answer = TypeVar("Answer")

# The files of the page: address, package, file, media type.
PAGE = (
    ("/", "captioner.serving", "static/index.html", "text/html; charset=utf-8"),
    ("/page.js", "captioner.serving", "static/page.js", "text/javascript; charset=utf-8"),
    ("/page.css", "captioner.serving", "static/page.css", "text/css; charset=utf-8"),
    ("/icon.svg", "captioner.serving", "static/icon.svg", "image/svg+xml"),
    ("/viewer.css", "captioner.visualization", "viewer.css", "text/css; charset=utf-8"),
)
_IMAGE_PROBLEMS = (400, 401, 403, 408, 413, 415, 421, 422, 503, 504)
_BINARY = {"schema": {"type": "string", "format": "binary"}}


def create_app(
    models: Mapping[str, Captioner],
    *,
    token: str | None = None,
    limits: Limits | None = None,
    allowed_hosts: Sequence[str] = LOOPBACK_HOSTS,
    allowed_origins: Sequence[str] = (),
) -> FastAPI:
    """Return the application.

    Args:
        token: What requests under /v1 and /metrics must bring, or None for no login.
        allowed_hosts: Host names under which the server answers, as patterns of Starlette's
            TrustedHostMiddleware; `*` is any.
        allowed_origins: Origins of other sites whose pages may use the interface.
    """
    service = Service(models, limits or Limits())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            service.start()
        except OSError as error:
            logger.error(
                "error: the server cannot start its processes for decoding and drawing "
                f"({error_summary(error)}); end other programs, or raise the limits of this one"
            )
            logging.getLogger("uvicorn.error").disabled = True  # it would add the traceback
            raise
        try:
            yield
        finally:
            await service.close()

    app = FastAPI(
        title="captioner",
        version=__version__,
        summary="Captions for photos, with the attention map of each word.",
        lifespan=lifespan,
        generate_unique_id_function=lambda route: route.name,
        docs_url=None,  # those pages load scripts from another host
        redoc_url=None,
    )
    app.state.service = service
    add_problem_handlers(app)
    login = [] if token is None else [Depends(BearerToken(token))]
    app.include_router(_image_routes(service), dependencies=login)
    app.include_router(_service_routes(service, login))
    for address, package, name, media_type in PAGE:
        _add_file(app, address, files(package).joinpath(name).read_bytes(), media_type)
    _add_file(app, "/viewer.js", viewer_script().encode(), "text/javascript; charset=utf-8")
    # From the innermost to the outermost: each one added handles a request before the others.
    if allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(allowed_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    app.add_middleware(CheckOrigin, allowed_origins=allowed_origins)
    app.add_middleware(CheckHost, allowed_hosts=allowed_hosts)
    app.add_middleware(AddSecurityHeaders)
    service.metrics.instrument(app)
    return app


def _image_routes(service: Service) -> APIRouter:
    """Return the routes that read an image."""
    router = APIRouter(prefix="/v1", tags=["photos"])
    problems = problem_responses(*_IMAGE_PROBLEMS)

    @router.post(
        "/captions",
        summary="Caption a photo",
        response_model=schemas.CaptionsAnswer,
        responses={
            200: {"content": {"application/json": {"example": schemas.CAPTIONS_EXAMPLE}}},
            **problems,
        },
        openapi_extra=describe_request(schemas.CaptionOptions, {"beam_size": 5}),
    )
    async def captions(request: Request) -> Response:
        answer = await _answer(service, request, schemas.CaptionOptions, service.captions)
        return JSONResponse(answer)

    @router.post(
        "/scores",
        summary="Score a caption that you bring",
        response_model=schemas.ScoreAnswer,
        responses={
            200: {"content": {"application/json": {"example": schemas.SCORE_EXAMPLE}}},
            **problems,
        },
        openapi_extra=describe_request(
            schemas.ScoreOptions, {"caption": schemas.CAPTION_EXAMPLE["caption"]}
        ),
    )
    async def scores(request: Request) -> Response:
        return JSONResponse(await _answer(service, request, schemas.ScoreOptions, service.score))

    @router.post(
        "/pictures",
        summary="Draw the attention maps",
        response_class=Response,
        responses={
            200: {
                "description": "A sheet (png), an animation (gif) or a page of one file (html).",
                "content": {"image/png": _BINARY, "image/gif": _BINARY, "text/html": {}},
            },
            **problems,
        },
        openapi_extra=describe_request(schemas.PictureOptions, {"format": "png"}),
    )
    async def pictures(request: Request) -> Response:
        async def draw(data: bytes, options: schemas.PictureOptions, client: str) -> Response:
            content, media_type = await service.picture(data, options, client)
            name = f'attachment; filename="caption.{options.format}"'
            headers = {"Content-Disposition": name}
            return Response(content, media_type=media_type, headers=headers)

        return await _answer(service, request, schemas.PictureOptions, draw)

    return router


async def _answer(
    service: Service,
    request: Request,
    kind: type[Options],
    work: Callable[[bytes, Options, str], Awaitable[Answer]],
) -> Answer:
    """Read a request with an image and process it, within the limits that hold for all of them.

    Raises:
        Problem: The request is refused, or took too long.
        ClientDisconnect: The client left; the work is cancelled.
    """
    deadline_s = service.limits.deadline_s
    client = client_key(request.client.host if request.client else "")
    try:
        with service.admission.upload(client) as upload:
            try:
                with anyio.fail_after(deadline_s):
                    data, options = await read_image_and_options(
                        request, kind, service.limits.max_bytes, upload
                    )
            except TimeoutError:
                raise Problem(
                    408,
                    f"the photo did not arrive within {deadline_s:g} s",
                    headers={"Connection": "close"},
                ) from None
            with service.admission.request(client):
                return await _while_connected(request, work(data, options, client), deadline_s)
    except FullError:
        service.metrics.refused.inc()
        raise Problem(503, "too many photos are waiting; try again in a moment") from None


async def _while_connected(request: Request, work: Awaitable[Answer], deadline_s: float) -> Answer:
    """Await the work; cancel it when the client leaves or the deadline has passed.

    Raises:
        Problem: 504, or what the work raises.
        ClientDisconnect: The client has left.
    """

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait(
            {working, leaving}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED
        )
        if working.done():
            return working.result()
        if leaving.done():
            raise ClientDisconnect
        raise Problem(
            504,
            f"the answer was not ready within {deadline_s:g} s; try again, or ask for a smaller "
            "beam_size",
        )
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def _service_routes(service: Service, login: Sequence[params.Depends]) -> APIRouter:
    """Return the routes for models and figures, and for the server's state without a login."""
    router = APIRouter(tags=["service"])

    @router.get(
        "/v1/models",
        summary="The models that are loaded",
        response_model=schemas.ModelsAnswer,
        responses=problem_responses(401, 403, 421),
        dependencies=login,
    )
    async def models() -> dict[str, Any]:
        return {
            "models": [
                {
                    "name": name,
                    "attention": captioner.config.attention.select,
                    "decoder": captioner.config.decoder.kind,
                    "beam_size": captioner.config.decoding.beam_size,
                    "max_words": captioner.config.decoding.max_words,
                    "words": len(captioner.vocabulary),
                }
                for name, captioner in service.models.items()
            ]
        }

    @router.get(
        "/metrics",
        summary="Figures for Prometheus",
        response_class=Response,
        responses={
            200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
            **problem_responses(401, 403, 421),
        },
        dependencies=login,
    )
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @router.get(
        "/health",
        summary="Whether the process lives",
        response_model=schemas.StateBody,
        responses=problem_responses(403, 421),
    )
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @router.get(
        "/ready",
        summary="Whether it takes photos now",
        response_model=schemas.StateBody,
        responses=problem_responses(403, 421, 503),
    )
    async def ready() -> dict[str, str]:
        if not service.ready or service.admission.full:
            raise Problem(503, "not now: it is starting, stopping or full")
        return {"status": "ready"}

    return router


def _add_file(app: FastAPI, address: str, content: bytes, media_type: str) -> None:
    async def file() -> Response:
        return Response(content, media_type=media_type, headers={"Cache-Control": "no-cache"})

    app.add_api_route(address, file, include_in_schema=False, methods=["GET", "HEAD"])
