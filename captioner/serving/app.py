"""The HTTP application: middlewares, routes, and how a request with photos is answered."""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import anyio
from anyio.to_thread import run_sync
from fastapi import Depends, FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from prometheus_client import CollectorRegistry, Histogram
from prometheus_fastapi_instrumentator import Instrumentator
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from captioner import __version__
from captioner.captioner import Captioner
from captioner.data.images import ImageInput, open_image
from captioner.errors import ConfigError, ImageError
from captioner.generation import SearchOptions
from captioner.runtime.parallel import shared_cores, usable_cores
from captioner.serving import answers
from captioner.serving.answers import EXCEPTION_HANDLERS, RESPONSES, Problem, option_problem
from captioner.serving.batching import Batcher
from captioner.serving.requests import (
    MAX_CAPTION_WORDS,
    MAX_PICTURE_WORDS,
    CaptionOptions,
    ImageOptions,
    Limits,
    Photo,
    PictureFormat,
    PictureOptions,
    ScoreOptions,
    describe_request,
    read_request,
)
from captioner.serving.security import LOOPBACK_HOSTS, BearerToken, BrowserRules
from captioner.storage import fetch_image
from captioner.visualization import Caption
from captioner.visualization.page import viewer_script

STATIC = Path(__file__).parent / "static"  # the page
VIEWER_STYLE = Path(__file__).parents[1] / "visualization" / "viewer.css"
PICTURE_TYPES = {kind: mimetypes.types_map[f".{kind}"] for kind in get_args(PictureFormat)}
FETCH_S = 10.0  # for a photo given by its address


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
    about, buckets = "Photos in a pass of the model", (1, 2, 4, 8, 12, 16)
    sizes = Histogram("captioner_batch_photos", about, buckets=buckets, registry=registry)
    service = Service(models, limits or Limits())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with shared_cores(next(iter(models.values())).device) as passes:
            service.batcher = Batcher(passes=passes, observe=sizes.observe)
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
    post = partial(app.post, tags=["photos"], dependencies=[*login, Depends(service.take_place)])
    # A response is not validated again: tests hold it to the model that OpenAPI names.
    post(
        "/v1/captions",
        summary="Caption photos",
        response_model=answers.CaptionsAnswer | answers.ManyAnswer[answers.CaptionsAnswer],
        openapi_extra=describe_request(CaptionOptions),
    )(service.captions)
    post(
        "/v1/scores",
        summary="Score a caption that you bring",
        response_model=answers.ScoreAnswer | answers.ManyAnswer[answers.ScoreAnswer],
        openapi_extra=describe_request(ScoreOptions),
    )(service.scores)
    binary = {"schema": {"type": "string", "format": "binary"}}
    post(
        "/v1/pictures",
        summary="Draw the attention maps of a photo",
        response_description="A sheet (png, svg, pdf), an animation (gif), or a page of one file "
        "(html).",
        response_class=Response,
        responses={200: {"content": dict.fromkeys(PICTURE_TYPES.values(), binary)}},
        openapi_extra=describe_request(PictureOptions),
    )(service.pictures)
    add = partial(app.add_api_route, tags=["service"])
    summary = "The models that are loaded"
    add("/v1/models", service.loaded, name="models", summary=summary, dependencies=login)
    add("/health", service.health, summary="Whether the process lives")
    add("/ready", service.ready, summary="Whether it takes photos now")
    pages = {f"/{file.name}": file for file in (*STATIC.iterdir(), VIEWER_STYLE)}
    pages["/"] = pages.pop("/index.html")
    for address in pages:
        app.add_route(address, lambda request: FileResponse(pages[request.url.path]))
    script = viewer_script()
    app.add_route("/viewer.js", lambda _: Response(script, media_type="text/javascript"))
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
    metrics = Instrumentator(should_group_status_codes=False, registry=registry)
    metrics.instrument(app, metric_namespace="captioner")
    shown: Any = {"summary": "Figures for Prometheus", "response_class": PlainTextResponse}
    metrics.expose(app, tags=["service"], dependencies=login, **shown)
    return app


class Service:
    """The models, threads and limits of the server, and its routes, which may raise a Problem."""

    batcher: Batcher  # set when the server starts

    def __init__(self, models: Mapping[str, Captioner], limits: Limits) -> None:
        self.models, self.limits = dict(models), limits
        self.requests = 0
        self._decoding = anyio.CapacityLimiter(usable_cores())
        self._drawing = anyio.CapacityLimiter(2)

    async def loaded(self) -> answers.ModelsAnswer:
        found = [
            answers.ModelBody(
                name=name,
                attention=captioner.config.attention.select,
                decoder=captioner.config.decoder.kind,
                beam_size=captioner.config.decoding.beam_size,
                max_words=captioner.config.decoding.max_words,
                words=len(captioner.vocabulary),
            )
            for name, captioner in self.models.items()
        ]
        return answers.ModelsAnswer(models=found)

    async def health(self) -> answers.StateBody:
        return answers.StateBody(status="ok")

    async def ready(self) -> answers.StateBody:
        if self.requests >= self.limits.max_requests:
            raise Problem(503, "not now: too many photos are waiting")
        return answers.StateBody(status="ready")

    async def take_place(self) -> AsyncIterator[None]:
        """Count a request until its answer, as a dependency; at most `max_requests` at once."""
        if self.requests >= self.limits.max_requests:
            raise Problem(503, "too many photos are waiting; try again in a moment")
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    async def captions(self, request: Request) -> Response:
        """Answer with a `CaptionsAnswer`, or those for several photos."""
        photos, options, several = await read_request(request, CaptionOptions, self.limits)
        name, captioner, search = self._model(options)
        if options.num_captions > search.beam_size and not options.sample:
            detail = f"is at most beam_size, which is {search.beam_size}"
            raise option_problem("num_captions", detail)

        async def work(photo: Photo) -> dict[str, Any]:
            image, _ = await self._decode(photo, captioner)
            captions = await self._caption(name, search, image)
            # In a thread: twenty captions with their maps keep others waiting.
            found = await run_sync(lambda: [each.to_dict(maps=options.maps) for each in captions])
            return {"model": name, "beam_size": search.beam_size, "captions": found}

        return await self._answer(photos, work, several=several)

    async def scores(self, request: Request) -> Response:
        """Answer with a `ScoreAnswer`, or those for several photos."""
        photos, options, several = await read_request(request, ScoreOptions, self.limits)
        name, captioner, _ = self._model(options)
        words = _check_words(captioner, options.caption, MAX_CAPTION_WORDS)

        async def work(photo: Photo) -> dict[str, Any]:
            image, _ = await self._decode(photo, captioner)
            score = partial(captioner.score, image, options.caption, at_test=options.at_test)
            caption = await self.batcher.run_alone(score)
            return {
                "model": name,
                "caption": caption.to_dict(maps=options.maps),
                "log_prob": round(caption.log_prob, 6),
                "unknown_words": [word for word in words if word not in captioner.vocabulary],
            }

        return await self._answer(photos, work, several=several)

    async def pictures(self, request: Request) -> Response:
        """Answer with a picture of a caption and its attention maps."""
        photos, options, _ = await read_request(request, PictureOptions, self.limits)
        if len(photos) > 1:
            raise option_problem("image", "a picture is of one photo; send a request for each")
        name, captioner, search = self._model(options)
        if options.caption is not None:
            _check_words(captioner, options.caption, MAX_PICTURE_WORDS)
        with self._deadline():
            image, content = await self._decode(photos[0], captioner)
            if options.caption is not None:
                score = partial(captioner.score, image, options.caption, at_test=options.at_test)
                caption = await self.batcher.run_alone(score)
            else:
                (caption,) = await self._caption(name, search, image)
            # The photo is decoded again to draw on, because many that wait would fill the memory.
            drawn = replace(caption, image=content)
            names = {"name": "your photo", "model": name}
            draw = partial(drawn.picture_bytes, options.format, options.style, **names)
            picture = await run_sync(draw, limiter=self._drawing, abandon_on_cancel=True)
        headers = {"Content-Disposition": f'attachment; filename="caption.{options.format}"'}
        return Response(picture, 200, headers, PICTURE_TYPES[options.format])

    async def _answer(
        self,
        photos: list[Photo],
        work: Callable[[Photo], Awaitable[dict[str, Any]]],
        *,
        several: bool,
    ) -> Response:
        """Return the answer for a photo, or the list of those for several, in time."""

        async def one_of_several(photo: Photo) -> dict[str, Any]:
            try:
                return {"image": photo.name, **await work(photo)}
            except Problem as problem:
                return {"image": photo.name, "error": problem.document()}

        with self._deadline():
            if not several:
                return JSONResponse(await work(photos[0]))
            return JSONResponse({"photos": await asyncio.gather(*map(one_of_several, photos))})

    @contextmanager
    def _deadline(self) -> Iterator[None]:
        try:
            with anyio.fail_after(self.limits.deadline_s):
                yield
        except TimeoutError:
            raise Problem(
                504,
                f"the answer was not ready within {self.limits.deadline_s:g} s; try again, or ask "
                "for less (a smaller beam_size, a shorter caption)",
            ) from None

    def _model(self, options: ImageOptions) -> tuple[str, Captioner, SearchOptions]:
        """Return the model that a request chooses, and its settings replaced by the request's."""
        name = next(iter(self.models)) if options.model is None else options.model
        if name not in self.models:
            names = " or ".join(self.models)
            raise option_problem("model", f"there is no model '{name}'; use {names}")
        given = options.model_dump(include={field.name for field in fields(SearchOptions)})
        try:
            return name, self.models[name], self.models[name].options(**given)
        except ConfigError as error:
            setting, _, detail = str(error).partition(": ")
            raise option_problem(setting, detail) from None

    async def _decode(self, photo: Photo, captioner: Captioner) -> tuple[ImageInput, bytes]:
        """Return a photo as the model takes it, and its file's bytes, fetched from an address."""
        source = photo.source
        in_thread = partial(run_sync, abandon_on_cancel=True)

        def decode(data: bytes) -> ImageInput:
            return captioner.transform.array(open_image(data, max_pixels=self.limits.max_pixels))

        if isinstance(source, Problem):
            raise source
        try:
            if isinstance(source, str):
                if not self.limits.allow_urls:
                    raise ImageError(
                        "is an address, and this server fetches none (captioner serve "
                        "--allow-urls); send the photo itself"
                    )
                source = await in_thread(fetch_image, source, self.limits.max_bytes, FETCH_S)
            return await in_thread(decode, source, limiter=self._decoding), source
        except ImageError as error:
            raise Problem(422, f"the photo {error}") from None

    async def _caption(self, name: str, search: SearchOptions, image: ImageInput) -> list[Caption]:
        """Caption an image in a batch with others of the same model and settings."""

        def caption_images(images: Sequence[ImageInput]) -> list[list[Caption]]:
            return self.models[name].captions(images, search)

        # Alone, so that a seed draws the same whoever else asks.
        if search.sample or search.seed is not None:
            return (await self.batcher.run_alone(lambda: caption_images([image])))[0]
        return await self.batcher.submit((name, search), caption_images, image)


def _check_words(captioner: Captioner, text: str, most: int) -> list[str]:
    """Return the words of a caption to score; their number bounds what scoring and drawing cost."""
    words = captioner.vocabulary.tokenizer.split(text)
    if not 1 <= len(words) <= most:
        raise option_problem("caption", f"has {len(words)} words; use 1 to {most}")
    return words
