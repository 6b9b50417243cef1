"""The models, the reader of photos and the batcher: what a request asks, and its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from captioner.captioner import Captioner
from captioner.serving.batching import Batcher, Gate
from captioner.serving.images import PhotoReader, ReadPhoto
from captioner.serving.metrics import Metrics
from captioner.serving.pictures import draw
from captioner.serving.problems import Problem
from captioner.serving.schemas import CaptionOptions, Looking, PictureOptions, ScoreOptions
from captioner.types import Caption

PICTURE_PX = 1280  # longest side of the photo in pictures
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Limits:
    """What a request may cost.

    max_bytes: of a request's body. max_pixels: of a photo. max_requests: inside at once, waiting
    and served; more are sent away. deadline_s: for an answer. decode_s: for decoding a photo.
    max_batch, wait_s, passes: see Batcher.
    """

    max_bytes: int = 20 * 10**6
    max_pixels: int = 50 * 10**6
    max_requests: int = 128
    deadline_s: float = 30.0
    decode_s: float = 10.0
    max_batch: int = 16
    wait_s: float = 0.010
    passes: int = 1


@dataclass(frozen=True)
class _Asked:
    """One photo of a pass, how many of its captions are wanted, and in what form."""

    photo: ReadPhoto
    count: int
    form: Callable[[list[Caption]], Any]


class Service:
    """Started and closed with the event loop that asks it."""

    def __init__(self, models: Mapping[str, Captioner], limits: Limits) -> None:
        self.models, self.limits = dict(models), limits
        self.metrics = Metrics()
        self.gate = Gate(limits.max_requests)
        self.metrics.watch(lambda: self.gate.inside)
        self.ready = False

    def start(self) -> None:
        """Takes a second or two: the processes that decode begin."""
        self._reader = PhotoReader(
            max_pixels=self.limits.max_pixels, time_limit_s=self.limits.decode_s
        )
        self._batcher = Batcher(
            max_batch=self.limits.max_batch,
            wait_s=self.limits.wait_s,
            passes=self.limits.passes,
            observe=self.metrics.batches.observe,
        )
        self._painter = ThreadPoolExecutor(1, thread_name_prefix="painter")
        self.ready = True

    async def close(self) -> None:
        """Finish what was begun."""
        self.ready = False
        await self._batcher.close()
        self._painter.shutdown()
        self._reader.close()

    async def captions(self, data: bytes, options: CaptionOptions) -> dict[str, Any]:
        name, captioner = self._model(options)
        beam_size = options.beam_size or captioner.config.decoding.beam_size
        if options.num_captions > beam_size:
            raise _wrong("num_captions", f"is at most beam_size, which is {beam_size}")
        photo = await self._reader.read(data, captioner.transform)
        form = partial(_as_dicts, maps=options.maps)
        asked = _Asked(photo, options.num_captions, form)
        captions = await self._written(name, beam_size, options, asked)
        return {"model": name, "beam_size": beam_size, "captions": captions}

    async def score(self, data: bytes, options: ScoreOptions) -> dict[str, Any]:
        name, captioner = self._model(options)
        _check_text(captioner, options.caption)
        photo = await self._reader.read(data, captioner.transform)
        caption = await self._read(name, options.caption, options, photo)
        words = captioner.vocabulary.tokenizer.split(options.caption)
        return {
            "model": name,
            "caption": caption.to_dict(maps=options.maps),
            "log_prob": round(float(caption.log_probs.sum()) + (caption.end_log_prob or 0.0), 6),
            "unknown_words": [word for word in words if word not in captioner.vocabulary],
        }

    async def picture(self, data: bytes, options: PictureOptions) -> tuple[bytes, str]:
        """A file that shows where the model looked, and its media type."""
        name, captioner = self._model(options)
        if options.caption is not None:
            _check_text(captioner, options.caption)
        photo = await self._reader.read(data, captioner.transform, picture_px=PICTURE_PX)
        if options.caption is not None:
            caption = await self._read(name, options.caption, options, photo)
        else:
            beam_size = options.beam_size or captioner.config.decoding.beam_size
            asked = _Asked(photo, 1, lambda captions: captions[0])
            caption = await self._written(name, beam_size, options, asked)
        assert photo.picture is not None
        geometry = caption.geometry.scaled(*photo.picture.size)
        caption = replace(caption, geometry=geometry)
        running = asyncio.get_running_loop()
        return await running.run_in_executor(
            self._painter, draw, options.format, photo.picture, caption, name
        )

    def _model(self, options: Looking) -> tuple[str, Captioner]:
        name = next(iter(self.models)) if options.model is None else options.model
        if name not in self.models:
            raise _wrong("model", f"there is no model '{name}'; use {' or '.join(self.models)}")
        captioner = self.models[name]
        if options.at_test and not captioner.has_hard_attention:
            raise _wrong("at_test", f"is for models with hard attention, and {name} has soft")
        return name, captioner

    async def _written(self, name: str, beam_size: int, options: Looking, asked: _Asked) -> Any:
        key = ("caption", name, beam_size, options.at_test)
        work = partial(_caption, self.models[name], beam_size=beam_size, at_test=options.at_test)
        return await self._batcher.submit(key, work, asked)

    async def _read(self, name: str, text: str, options: Looking, photo: ReadPhoto) -> Caption:
        def work(photos: Sequence[ReadPhoto]) -> list[Caption]:
            return [
                self.models[name].score((p.pixels, p.geometry), text, at_test=options.at_test)
                for p in photos
            ]

        return await self._batcher.submit(("score", name, text, options.at_test), work, photo)


def _caption(captioner: Captioner, asked: Sequence[_Asked], **search: Any) -> list[Any]:
    photos = [(each.photo.pixels, each.photo.geometry) for each in asked]
    found = captioner.n_best(photos, max(each.count for each in asked), **search)
    return [each.form(captions[: each.count]) for each, captions in zip(asked, found, strict=True)]


def _as_dicts(captions: list[Caption], *, maps: bool) -> list[dict[str, Any]]:
    return [caption.to_dict(maps=maps) for caption in captions]


def _check_text(captioner: Captioner, text: str) -> None:
    if not captioner.vocabulary.tokenizer.split(text):
        raise _wrong("caption", "has no words; give at least one")


def _wrong(name: str, detail: str) -> Problem:
    return Problem(422, f"{name}: {detail}", errors=[{"name": name, "detail": detail}])
