"""The HTTP application: middlewares, routes, their OpenAPI document and the web page."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, params
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_fastapi_instrumentator import Instrumentator
from pydantic import BaseModel
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from captioner import __version__
from captioner.captioner import Captioner
from captioner.runtime.parallel import shared_cores
from captioner.serving import schemas
from captioner.serving.batching import Batcher
from captioner.serving.problems import EXCEPTION_HANDLERS, RESPONSES, Problem
from captioner.serving.requests import Limits, PhotoRequest, describe_request, photo_request_reader
from captioner.serving.security import LOOPBACK_HOSTS, BearerToken, BrowserRules
from captioner.serving.service import Service
from captioner.visualization.page import viewer_script

PAGE = {
    "index.html": "text/html",
    "page.js": "text/javascript",
    "page.css": "text/css",
    "icon.svg": "image/svg+xml",
    "sample.jpg": "image/jpeg",
}
PICTURE_TYPES: dict[schemas.PictureFormat, str] = {
    "png": "image/png",
    "gif": "image/gif",
    "html": "text/html",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
}


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
        models: By name; the first is the default.
        token: What requests under /v1 and /metrics must bring, or None for no login.
        limits: On what requests may cost.
        allowed_hosts: Host names under which the server answers, as patterns of Starlette's
            TrustedHostMiddleware; `*` is any.
        allowed_origins: Origins of other sites whose pages may use the interface.
    """
    registry = CollectorRegistry()
    batch_sizes = Histogram(
        "captioner_batch_photos",
        "Photos in a pass of the model",
        buckets=(1, 2, 4, 8, 12, 16),
        registry=registry,
    )
    service = Service(models, limits or Limits())
    Gauge("captioner_requests_in_progress", "Requests with photos", registry=registry).set_function(
        lambda: service.requests
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with shared_cores(next(iter(models.values())).device) as passes:
            service.batcher = Batcher(passes=passes, observe=batch_sizes.observe)
            yield
            service.batcher.close()

    app = FastAPI(
        title="captioner",
        version=__version__,
        summary="Captions for photos, with the attention map of each word.",
        lifespan=lifespan,
        generate_unique_id_function=lambda route: route.name,
        docs_url=None,  # those pages load scripts from another host
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=EXCEPTION_HANDLERS,
        responses=RESPONSES,
    )
    login = [] if token is None else [Depends(BearerToken(token))]
    app.include_router(_photo_routes(service), dependencies=login)
    app.include_router(_service_routes(service, login))
    for name, media_type in PAGE.items():
        content = files("captioner.serving").joinpath("static", name).read_bytes()
        _add_file(app, "/" if name == "index.html" else f"/{name}", content, media_type)
    style = files("captioner.visualization").joinpath("viewer.css").read_bytes()
    _add_file(app, "/viewer.css", style, "text/css")
    _add_file(app, "/viewer.js", viewer_script().encode(), "text/javascript")
    # From the innermost to the outermost: each one added handles a request before the others.
    if allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(allowed_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    app.add_middleware(BrowserRules, allowed_origins=allowed_origins)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(allowed_hosts), www_redirect=False)
    Instrumentator(should_group_status_codes=False, registry=registry).instrument(
        app, metric_namespace="captioner"
    ).expose(
        app,
        tags=["service"],
        dependencies=login,
        summary="Figures for Prometheus",
        response_class=PlainTextResponse,
    )
    return app


def _photo_routes(service: Service) -> APIRouter:
    """Return the routes that read photos."""
    router = APIRouter(prefix="/v1", tags=["photos"], dependencies=[Depends(service.take_place)])

    def reader(options: type[BaseModel]) -> Any:
        return Depends(photo_request_reader(options, service.limits))

    # A response is not validated again: tests hold it to the model that OpenAPI names.
    @router.post(
        "/captions",
        summary="Caption photos",
        response_model=schemas.CaptionsAnswer | schemas.ManyAnswer[schemas.CaptionsAnswer],
        openapi_extra=describe_request(schemas.CaptionOptions),
    )
    async def captions(
        request: Annotated[PhotoRequest[Any], reader(schemas.CaptionOptions)],
    ) -> Response:
        return JSONResponse(await service.captions(request))

    @router.post(
        "/scores",
        summary="Score a caption that you bring",
        response_model=schemas.ScoreAnswer | schemas.ManyAnswer[schemas.ScoreAnswer],
        openapi_extra=describe_request(schemas.ScoreOptions),
    )
    async def scores(
        request: Annotated[PhotoRequest[Any], reader(schemas.ScoreOptions)],
    ) -> Response:
        return JSONResponse(await service.scores(request))

    binary = {"schema": {"type": "string", "format": "binary"}}

    @router.post(
        "/pictures",
        summary="Draw the attention maps of a photo",
        response_description="A sheet (png, svg, pdf), an animation (gif), or a page of one file "
        "(html).",
        response_class=Response,
        responses={200: {"content": dict.fromkeys(PICTURE_TYPES.values(), binary)}},
        openapi_extra=describe_request(schemas.PictureOptions),
    )
    async def pictures(
        request: Annotated[PhotoRequest[Any], reader(schemas.PictureOptions)],
    ) -> Response:
        form = request.options.format
        headers = {"Content-Disposition": f'attachment; filename="caption.{form}"'}
        return Response(await service.picture(request), 200, headers, PICTURE_TYPES[form])

    return router


def _service_routes(service: Service, login: Sequence[params.Depends]) -> APIRouter:
    """Return the routes for models, and for the server's state without a login."""
    router = APIRouter(tags=["service"])

    @router.get("/v1/models", summary="The models that are loaded", dependencies=login)
    async def models() -> schemas.ModelsAnswer:
        found = [
            schemas.ModelBody(
                name=name,
                attention=captioner.config.attention.select,
                decoder=captioner.config.decoder.kind,
                beam_size=captioner.config.decoding.beam_size,
                max_words=captioner.config.decoding.max_words,
                words=len(captioner.vocabulary),
            )
            for name, captioner in service.models.items()
        ]
        return schemas.ModelsAnswer(models=found)

    @router.get("/health", summary="Whether the process lives")
    async def health() -> schemas.StateBody:
        return schemas.StateBody(status="ok")

    @router.get("/ready", summary="Whether it takes photos now")
    async def ready() -> schemas.StateBody:
        if service.full:
            raise Problem(503, "not now: too many photos are waiting")
        return schemas.StateBody(status="ready")

    return router


def _add_file(app: FastAPI, address: str, content: bytes, media_type: str) -> None:
    async def file() -> Response:
        return Response(content, media_type=media_type, headers={"Cache-Control": "no-cache"})

    app.add_api_route(address, file, include_in_schema=False, methods=["GET", "HEAD"])
