"""The models, threads and limits of the server: from photos to answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, TypeAlias

import anyio
from anyio.to_thread import run_sync
from PIL import Image

from captioner.captioner import Captioner
from captioner.data.download import fetch_image
from captioner.data.images import open_image
from captioner.data.inputs import ImageInput
from captioner.errors import ConfigError, ImageError
from captioner.generation import SearchOptions
from captioner.runtime.device import usable_cores
from captioner.serving.batching import Batcher
from captioner.serving.problems import Problem, option_problem
from captioner.serving.requests import Limits, Photo, PhotoRequest
from captioner.serving.schemas import (
    MAX_CAPTION_WORDS,
    MAX_PICTURE_WORDS,
    CaptionOptions,
    ImageOptions,
    PictureOptions,
    ScoreOptions,
)
from captioner.visualization import Caption, OverlayStyle

# A photo as the model takes it, as pictures show it, and its own size.
Decoded: TypeAlias = tuple[ImageInput, Image.Image, tuple[int, int]]
PREVIEW_PX = 1280  # longest side of the image in pictures
FETCH_S = 10.0  # for a photo given by its address


class Service:
    """Answers requests; raises a Problem if an option or the only photo cannot be used."""

    batcher: Batcher  # set when the server starts

    def __init__(self, models: Mapping[str, Captioner], limits: Limits) -> None:
        self.models, self.limits = dict(models), limits
        self.requests = 0
        self._decoding = anyio.CapacityLimiter(usable_cores())
        self._drawing = anyio.CapacityLimiter(2)

    @property
    def full(self) -> bool:
        return self.requests >= self.limits.max_requests

    async def take_place(self) -> AsyncIterator[None]:
        """Count a request until its answer, as a dependency.

        Raises:
            Problem: 503, there are as many as the server takes.
        """
        if self.full:
            raise Problem(503, "too many photos are waiting; try again in a moment")
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    async def captions(self, request: PhotoRequest[CaptionOptions]) -> dict[str, Any]:
        """Return the content of a `CaptionsAnswer`, or those for several photos."""
        options = request.options
        name, captioner, search = self._model(options)
        if options.num_captions > search.beam_size and not options.sample:
            raise option_problem(
                "num_captions", f"is at most beam_size, which is {search.beam_size}"
            )

        async def work(photo: Photo) -> dict[str, Any]:
            image, *_ = await self._decode(photo, captioner)
            captions = await self._caption(name, search, image)
            # In a thread: twenty captions with their maps keep others waiting.
            contents = await run_sync(
                lambda: [each.to_dict(maps=options.maps) for each in captions]
            )
            return {"model": name, "beam_size": search.beam_size, "captions": contents}

        return await self._answer(request, work)

    async def scores(self, request: PhotoRequest[ScoreOptions]) -> dict[str, Any]:
        """Return the content of a `ScoreAnswer`, or those for several photos."""
        options = request.options
        name, captioner, _ = self._model(options)
        words = _check_words(captioner, options.caption, MAX_CAPTION_WORDS)

        async def work(photo: Photo) -> dict[str, Any]:
            image, *_ = await self._decode(photo, captioner)
            caption = await self._score(captioner, options.caption, options, image)
            return {
                "model": name,
                "caption": caption.to_dict(maps=options.maps),
                "log_prob": round(caption.log_prob, 6),
                "unknown_words": [word for word in words if word not in captioner.vocabulary],
            }

        return await self._answer(request, work)

    async def picture(self, request: PhotoRequest[PictureOptions]) -> bytes:
        """Return a picture of a caption and its attention maps."""
        if len(request.photos) > 1:
            raise option_problem("image", "a picture is of one photo; send a request for each")
        options = request.options
        name, captioner, search = self._model(options)
        if options.caption is not None:
            _check_words(captioner, options.caption, MAX_PICTURE_WORDS)
        with self._deadline():
            image, preview, size = await self._decode(request.photos[0], captioner)
            if options.caption is not None:
                caption = await self._score(captioner, options.caption, options, image)
            else:
                (caption,) = await self._caption(name, search, image)
            drawn = replace(caption, geometry=caption.geometry.scaled(*preview.size), image=preview)
            return await run_sync(
                lambda: drawn.picture_bytes(
                    options.format,
                    OverlayStyle(options.style),
                    name="your photo",
                    model=name,
                    original_size=size,
                ),
                limiter=self._drawing,
                abandon_on_cancel=True,
            )

    async def _answer(
        self, request: PhotoRequest[Any], work: Callable[[Photo], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        """Return the answer for a photo, or the list of those for several, in time."""

        async def one_of_several(photo: Photo) -> dict[str, Any]:
            try:
                return {"image": photo.name, **await work(photo)}
            except Problem as problem:
                return {"image": photo.name, "error": problem.document()}

        with self._deadline():
            if not request.several:
                return await work(request.photos[0])
            return {"photos": await asyncio.gather(*map(one_of_several, request.photos))}

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

    async def _decode(self, photo: Photo, captioner: Captioner) -> Decoded:
        source = photo.source
        try:
            if isinstance(source, str):
                if not self.limits.allow_urls:
                    raise ImageError(
                        "is an address, and this server fetches none (captioner serve "
                        "--allow-urls); send the photo itself"
                    )
                source = await run_sync(
                    fetch_image, source, self.limits.max_bytes, FETCH_S, abandon_on_cancel=True
                )
            return await run_sync(
                decode,
                source,
                captioner,
                self.limits.max_pixels,
                limiter=self._decoding,
                abandon_on_cancel=True,
            )
        except ImageError as error:
            raise Problem(422, f"the photo {error}") from None

    async def _caption(self, name: str, search: SearchOptions, image: ImageInput) -> list[Caption]:
        """Caption an image in a batch with others of the same model and settings."""

        def caption_images(images: Sequence[ImageInput]) -> list[list[Caption]]:
            return self.models[name].captions(images, search)

        if search.sample:  # alone, so that a seed draws the same whoever else asks
            return (await self.batcher.run_alone(lambda: caption_images([image])))[0]
        return await self.batcher.submit((name, search), caption_images, image)

    async def _score(
        self, captioner: Captioner, text: str, options: ImageOptions, image: ImageInput
    ) -> Caption:
        return await self.batcher.run_alone(
            lambda: captioner.score(image, text, at_test=options.at_test)
        )


def decode(data: bytes, captioner: Captioner, max_pixels: int) -> Decoded:
    """Decode the bytes of a photo's file.

    Raises:
        ImageError: It cannot be read, or has more pixels than `max_pixels`.
    """
    image = open_image(data, max_pixels=max_pixels)
    size = image.size
    prepared = captioner.transform.array(image)
    image.thumbnail((PREVIEW_PX, PREVIEW_PX), Image.Resampling.LANCZOS)  # if it is larger
    return prepared, image, size


def _check_words(captioner: Captioner, text: str, most: int) -> list[str]:
    """Return the words of a caption to score; their number bounds what scoring and drawing cost."""
    words = captioner.vocabulary.tokenizer.split(text)
    if not words:
        raise option_problem("caption", "has no words; give at least one")
    if len(words) > most:
        detail = f"has {len(words)} words after Unicode normalisation; use at most {most}"
        raise option_problem("caption", detail)
    return words
