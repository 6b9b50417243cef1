"""The models, the image decoder, the batcher and the painter: from a request to its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from captioner.captioner import Captioner
from captioner.serving.admission import Admission
from captioner.serving.batching import Batcher
from captioner.serving.metrics import Metrics
from captioner.serving.pool import DecodedImage, ImageDecoder, Painter
from captioner.serving.problems import option_problem
from captioner.serving.schemas import (
    MAX_CAPTION_WORDS,
    CaptionOptions,
    ImageOptions,
    PictureOptions,
    ScoreOptions,
)
from captioner.types import Caption

PREVIEW_PX = 1280  # longest side of the image in pictures
MAX_HELD_BYTES = 500 * 10**6  # of all bodies in memory, or two of the largest size
DECODE_S = 10.0  # for one image
DRAW_S = 15.0  # for one picture
CLOSE_TIMEOUT_S = 5.0  # for models that still run when the server ends


@dataclass(frozen=True)
class Limits:
    """Limits on what requests may cost.

    Attributes:
        max_bytes: Size of a request's body.
        max_pixels: Width x height of an image.
        max_requests: Complete requests that wait or are processed at once.
        deadline_s: Seconds for a body to arrive, and again for the answer.
        passes: Batches at once; see Batcher.
    """

    max_bytes: int = 20 * 10**6
    max_pixels: int = 50 * 10**6
    max_requests: int = 128
    deadline_s: float = 30.0
    passes: int = 1


@dataclass(frozen=True)
class _CaptionRequest:
    """An image of a batch, and the number of captions to write for it."""

    image: DecodedImage
    count: int


class Service:
    """Answers requests; started and closed in the event loop that uses it.

    `captions`, `score` and `picture` raise a Problem if the image or an option cannot be used.
    """

    def __init__(self, models: Mapping[str, Captioner], limits: Limits) -> None:
        self.models, self.limits = dict(models), limits
        held_bytes = max(MAX_HELD_BYTES, 2 * limits.max_bytes)
        self.admission = Admission(limits.max_requests, held_bytes)
        self.metrics = Metrics(lambda: self.admission.in_progress)
        self.ready = False
        self.abandoned = False

    def start(self) -> None:
        """Start the processes that decode and draw; takes a second or two."""
        self._decoder = ImageDecoder(max_pixels=self.limits.max_pixels, time_limit_s=DECODE_S)
        self._painter = Painter(time_limit_s=DRAW_S)
        self._batcher = Batcher(passes=self.limits.passes, observe=self.metrics.batch_sizes.observe)
        self.ready = True

    async def close(self) -> None:
        """Finish what waits for a model, and end the processes.

        After CLOSE_TIMEOUT_S, `abandoned` becomes true and a thread may still be running.
        """
        self.ready = False
        self.abandoned = not await self._batcher.close(CLOSE_TIMEOUT_S)
        await asyncio.to_thread(self._painter.close)
        await asyncio.to_thread(self._decoder.close)

    async def captions(self, data: bytes, options: CaptionOptions, client: str) -> dict[str, Any]:
        """Return the content of a `CaptionsAnswer`."""
        name, captioner = self._model(options)
        beam_size = options.beam_size or captioner.config.decoding.beam_size
        if options.num_captions > beam_size:
            raise option_problem("num_captions", f"is at most beam_size, which is {beam_size}")
        image = await self._decoder.decode(data, captioner.transform, client=client)
        request = _CaptionRequest(image, options.num_captions)
        captions = await self._caption(name, beam_size, options, request, client)
        # In a thread: twenty captions with their maps take long enough to keep others waiting.
        contents = await asyncio.to_thread(
            lambda: [caption.to_dict(maps=options.maps) for caption in captions]
        )
        return {"model": name, "beam_size": beam_size, "captions": contents}

    async def score(self, data: bytes, options: ScoreOptions, client: str) -> dict[str, Any]:
        """Return the content of a `ScoreAnswer`."""
        name, captioner = self._model(options)
        words = _check_words(captioner, options.caption)
        image = await self._decoder.decode(data, captioner.transform, client=client)
        caption = await self._score(name, options.caption, options, image, client)
        return {
            "model": name,
            "caption": caption.to_dict(maps=options.maps),
            "log_prob": round(caption.log_prob, 6),
            "unknown_words": [word for word in words if word not in captioner.vocabulary],
        }

    async def picture(self, data: bytes, options: PictureOptions, client: str) -> tuple[bytes, str]:
        """Return a picture of a caption and its attention maps, and the file's media type."""
        name, captioner = self._model(options)
        if options.caption is not None:
            _check_words(captioner, options.caption)
        image = await self._decoder.decode(
            data, captioner.transform, preview_px=PREVIEW_PX, client=client
        )
        if options.caption is not None:
            caption = await self._score(name, options.caption, options, image, client)
        else:
            beam_size = options.beam_size or captioner.config.decoding.beam_size
            request = _CaptionRequest(image, 1)
            (caption,) = await self._caption(name, beam_size, options, request, client)
        assert image.preview is not None
        return await self._painter.draw(options.format, image.preview, caption, name, client=client)

    def _model(self, options: ImageOptions) -> tuple[str, Captioner]:
        """Return the name and the captioner of the model that the options choose."""
        name = next(iter(self.models)) if options.model is None else options.model
        if name not in self.models:
            names = " or ".join(self.models)
            raise option_problem("model", f"there is no model '{name}'; use {names}")
        captioner = self.models[name]
        if options.at_test and not captioner.has_hard_attention:
            detail = f"is for models with hard attention, and {name} has soft"
            raise option_problem("at_test", detail)
        return name, captioner

    async def _caption(
        self,
        name: str,
        beam_size: int,
        options: ImageOptions,
        request: _CaptionRequest,
        client: str,
    ) -> list[Caption]:
        """Caption an image in a batch with others of the same model and settings."""

        def caption_images(requests: Sequence[_CaptionRequest]) -> list[list[Caption]]:
            images = [(each.image.pixels, each.image.geometry) for each in requests]
            most = max(each.count for each in requests)
            n_best = self.models[name].n_best(
                images, most, beam_size=beam_size, at_test=options.at_test
            )
            pairs = zip(requests, n_best, strict=True)
            return [captions[: each.count] for each, captions in pairs]

        key = ("caption", name, beam_size, options.at_test)
        return await self._batcher.submit(key, caption_images, request, client=client)

    async def _score(
        self, name: str, text: str, options: ImageOptions, image: DecodedImage, client: str
    ) -> Caption:
        """Score a caption of an image in the model's thread."""

        def score_image(images: Sequence[DecodedImage]) -> list[Caption]:
            given = (images[0].pixels, images[0].geometry)
            return [self.models[name].score(given, text, at_test=options.at_test)]

        # Each alone: scoring gains nothing from a batch, and others need not wait for all of it.
        return await self._batcher.submit(object(), score_image, image, client=client)


def _check_words(captioner: Captioner, text: str) -> list[str]:
    """Return the words of a caption to score; their number bounds what scoring and drawing cost."""
    words = captioner.vocabulary.tokenizer.split(text)
    if not words:
        raise option_problem("caption", "has no words; give at least one")
    if len(words) > MAX_CAPTION_WORDS:
        detail = f"has {len(words)} words after Unicode normalisation; use at most"
        raise option_problem("caption", f"{detail} {MAX_CAPTION_WORDS}")
    return words
