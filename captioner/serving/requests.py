"""Requests with photos: their options, and reading them from a form, JSON or the bytes of a photo.

FastAPI's own form parameters are not used, because they take neither JSON nor a raw body on the
same route, read a form before the token is checked, and write uploads of more than 1 MB to the
disk. The parser and the models of the options are FastAPI's.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar

import anyio
from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from captioner.config import HardAttentionMode
from captioner.serving.answers import Problem, option_problem
from captioner.storage import is_web_address
from captioner.visualization.style import STYLES, StyleName

MULTIPART, JSON, BYTES = "multipart/form-data", "application/json", "application/octet-stream"
IMAGE = "image"  # the field of photos
MAX_PHOTOS = 16  # in a request
MAX_BEAM = 20
MAX_CAPTION_CHARACTERS = 1000
MAX_CAPTION_WORDS, MAX_PICTURE_WORDS = 60, 30  # counted by the model's tokenizer (see app)

PictureFormat = Literal["png", "gif", "html", "svg", "pdf"]
CaptionText = Annotated[str, Field(min_length=1, max_length=MAX_CAPTION_CHARACTERS)]


class ImageOptions(BaseModel):
    """Options of every request with an image."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(
        None, max_length=200, description="A name from /v1/models; by default the first."
    )
    at_test: HardAttentionMode | None = Field(
        None, description="How hard attention selects a cell; only for models with it."
    )


class SearchSettings(ImageOptions):
    beam_size: int | None = Field(
        None, ge=1, le=MAX_BEAM, description="Hypotheses kept; 1 is greedy. Default: the model's."
    )
    min_words: int | None = Field(None, ge=0, lt=MAX_CAPTION_WORDS, description="Shortest caption.")
    max_words: int | None = Field(None, ge=1, le=MAX_CAPTION_WORDS, description="Longest caption.")


class CaptionOptions(SearchSettings):
    num_captions: int = Field(
        1, ge=1, le=MAX_BEAM, description="Captions to answer, best first; up to beam_size."
    )
    sample: bool = Field(False, description="Draw captions at random instead of searching.")
    temperature: float | None = Field(
        None, gt=0, le=100, description="With sample: below 1 likely words become likelier."
    )
    top_p: float | None = Field(
        None,
        gt=0,
        le=1,
        description="With sample: only the likeliest words whose probabilities sum to this.",
    )
    seed: int | None = Field(
        None, ge=0, le=2**63 - 1, description="With sample: draw the same captions again."
    )
    maps: bool = Field(False, description="Also answer the attention map of each word.")


class ScoreOptions(ImageOptions):
    caption: CaptionText = Field(
        description=f"The caption to score, of at most {MAX_CAPTION_WORDS} words.",
        examples=["two dogs run through the snow"],
    )
    maps: bool = Field(False, description="Also answer the attention map of each word.")


class PictureOptions(SearchSettings):
    format: PictureFormat = Field("png", description="What to draw.")
    style: StyleName = Field(STYLES[0], description="How attention is shown.")
    caption: CaptionText | None = Field(
        None,
        description=f"A caption to score and draw, of at most {MAX_PICTURE_WORDS} words; without "
        "it the model writes one, by the other options.",
    )


Options = TypeVar("Options", bound=ImageOptions)


@dataclass(frozen=True)
class Limits:
    """Limits on what requests may cost."""

    max_bytes: int = 20 * 10**6  # of a request's body, and of a photo that is fetched
    max_pixels: int = 50 * 10**6  # width x height of an image
    max_requests: int = 128  # that wait or are processed at once
    deadline_s: float = 30.0  # for a body to arrive, and again for the answer
    allow_urls: bool = False  # fetch photos that are given by their address


class Photo(NamedTuple):
    """A photo: its name, and the bytes of its file, its address, or why there is neither."""

    name: str
    source: bytes | str | Problem


Body: TypeAlias = tuple[list[Photo], dict[str, Any], bool]  # as `read_request` returns it


async def read_request(
    request: Request, kind: type[Options], limits: Limits
) -> tuple[list[Photo], Options, bool]:
    """Return the photos of a request, its options, and whether it is answered by a list."""
    try:
        with anyio.fail_after(limits.deadline_s):
            photos, fields, is_list = await _read_body(request, limits.max_bytes)
    except TimeoutError:
        detail = f"the photo did not arrive within {limits.deadline_s:g} s"
        raise Problem(408, detail, headers={"Connection": "close"}) from None
    if not photos:
        raise Problem(422, f"there is no photo in the request; give it in '{IMAGE}'")
    if len(photos) > MAX_PHOTOS:
        raise option_problem(IMAGE, f"at most {MAX_PHOTOS} photos in a request")
    try:
        options = kind.model_validate({**request.query_params, **fields})
    except ValidationError as error:
        errors = []
        for each in error.errors():
            detail = each["msg"]
            if each["type"] == "extra_forbidden":
                detail = f"there is no such option; there are {', '.join(kind.model_fields)}"
            errors.append({"name": ".".join(map(str, each["loc"])), "detail": detail})
        raise Problem(422, "{name}: {detail}".format(**errors[0]), errors=errors) from None
    return photos, options, is_list or len(photos) > 1


async def _read_body(request: Request, max_bytes: int) -> Body:
    detail = f"the body is over the limit of {max_bytes / 10**6:g} MB; send less"
    too_large = Problem(413, detail, headers={"Connection": "close"})
    # Refused before it is sent: curl waits for that, and would lose a later answer.
    if int(request.headers.get("content-length", 0)) > max_bytes:
        raise too_large

    async def limited() -> AsyncGenerator[bytes, None]:
        left = max_bytes
        async for chunk in request.stream():
            left -= len(chunk)
            if left < 0:
                raise too_large
            yield chunk

    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == MULTIPART:
        return await _read_form(request, limited())
    content = b"".join([chunk async for chunk in limited()])
    if media_type == JSON:
        return _read_json(content)
    if media_type == BYTES or media_type.startswith("image/"):
        return [Photo("photo", content)], {}, False
    raise Problem(
        415,
        f"send photos as {MULTIPART} or {JSON} with the field {IMAGE}, or the bytes of one "
        f"as image/* or {BYTES}",
    )


async def _read_form(request: Request, body: AsyncGenerator[bytes, None]) -> Body:
    parser = MultiPartParser(request.headers, body)
    parser.spool_max_size = 2**62  # in memory: nothing uploaded touches the disk
    try:
        form = await parser.parse()
    except (MultiPartException, UnicodeError) as error:
        raise Problem(400, f"the multipart body cannot be read: {error}") from None
    photos, fields = [], {}
    for name, value in form.multi_items():
        if isinstance(value, UploadFile) and name == IMAGE:
            photos.append(Photo(value.filename or "photo", await value.read()))
        elif isinstance(value, str) and name != IMAGE:
            fields[name] = value
        elif isinstance(value, str) and is_web_address(value):
            photos.append(Photo(value, value))
        else:
            detail = f"a photo is a file in the field {IMAGE} (curl -F {IMAGE}=@photo.jpg)"
            raise option_problem(name, detail)
    await form.close()
    return photos, fields, False


def _read_json(body: bytes) -> Body:
    try:
        content = json.loads(body)
        images = content.pop(IMAGE, [])
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise Problem(400, f"the body is no JSON object such as {{'{IMAGE}': BASE64}}") from None
    is_list = isinstance(images, list)
    photos = []
    for number, text in enumerate(images if is_list else [images], start=1):
        name, source = f"photo {number}", None
        try:
            if is_web_address(text):
                name = source = text
            else:
                encoded = text.partition(",")[2] if text.startswith("data:") else text
                plain = "".join(encoded.split()).replace("-", "+").replace("_", "/")  # of URLs
                source = base64.b64decode(plain, validate=True)
        except (AttributeError, ValueError):
            detail = f"{name} is neither base64, nor a data URL, nor an address"
            source = option_problem(IMAGE, detail)
        photos.append(Photo(name, source))
    return photos, content, is_list


def describe_request(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI parameters and body of what `read_request` reads."""
    parameters = [
        {"name": name, "in": "query", "schema": schema, "description": schema["description"]}
        for name, schema in kind.model_json_schema()["properties"].items()
    ]

    def schema(image: Any) -> dict[str, Any]:
        return create_model(kind.__name__, __base__=kind, image=image).model_json_schema()

    text = Annotated[str, Field(description="base64, a data URL, or an address (--allow-urls)")]
    content = {
        MULTIPART: schema(Annotated[list[bytes], Field(min_length=1, max_length=MAX_PHOTOS)]),
        JSON: schema(text | Annotated[list[text], Field(min_length=1, max_length=MAX_PHOTOS)]),
        "image/*": {"type": "string", "format": "binary"},
        BYTES: {"type": "string", "format": "binary"},
    }
    body = {media_type: {"schema": schema} for media_type, schema in content.items()}
    return {"parameters": parameters, "requestBody": {"required": True, "content": body}}
