"""Read photos and options from a request: a multipart form, JSON, or the raw bytes of one photo.

FastAPI's own form parameters are not used, because they take neither JSON nor a raw body on the
same route, read a form before the token is checked, and write uploads of more than 1 MB to the
disk. The parser and the models of the options are FastAPI's.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

import anyio
from fastapi import Request
from pydantic import BaseModel, Field, ValidationError, create_model
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from captioner.data.download import is_url
from captioner.serving.problems import Problem, option_problem

MULTIPART, JSON, BYTES = "multipart/form-data", "application/json", "application/octet-stream"
IMAGE = "image"  # the field of photos
MAX_PHOTOS = 16  # in a request
MAX_FIELDS, MAX_FIELD_BYTES = 40, 2**16  # of a form, its photos apart
Options = TypeVar("Options", bound=BaseModel)


@dataclass(frozen=True)
class Photo:
    """A photo of a request: its name, and the bytes of its file or the address to fetch."""

    name: str
    source: bytes | str


@dataclass(frozen=True)
class PhotoRequest(Generic[Options]):
    """A request that has been read.

    Attributes:
        several: The answer is a list, because the request has several photos or a list of them.
    """

    photos: list[Photo]
    options: Options
    several: bool


def photo_request_reader(
    kind: type[Options], max_bytes: int, deadline_s: float
) -> Callable[[Request], Awaitable[PhotoRequest[Options]]]:
    """Return a dependency that reads a request.

    Args:
        kind: Model of the options.
        max_bytes: Largest body.
        deadline_s: Seconds for the body to arrive.
    """

    async def read(request: Request) -> PhotoRequest[Options]:
        try:
            with anyio.fail_after(deadline_s):
                return await _read(request, kind, max_bytes)
        except TimeoutError:
            detail = f"the photo did not arrive within {deadline_s:g} s"
            raise Problem(408, detail, headers={"Connection": "close"}) from None

    return read


async def _read(request: Request, kind: type[Options], max_bytes: int) -> PhotoRequest[Options]:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = _limited(request, max_bytes)
    several = False
    fields: list[tuple[str, Any]] = []
    if media_type == MULTIPART:
        photos, fields = await _read_form(request, body)
    elif media_type == JSON:
        photos, fields, several = _read_json(b"".join([chunk async for chunk in body]))
    elif media_type == BYTES or media_type.startswith("image/"):
        photos = [Photo("photo", b"".join([chunk async for chunk in body]))]
    else:
        raise Problem(
            415,
            f"send photos as {MULTIPART} or {JSON} with the field {IMAGE}, or the bytes of one "
            f"as image/* or {BYTES}",
        )
    if not photos or not all(photo.source for photo in photos):
        raise Problem(422, f"there is no photo in the request; a form has it in '{IMAGE}'")
    if len(photos) > MAX_PHOTOS:
        raise option_problem(IMAGE, f"at most {MAX_PHOTOS} photos in a request")
    options = _validated(kind, [*request.query_params.multi_items(), *fields])
    return PhotoRequest(photos, options, several or len(photos) > 1)


async def _limited(request: Request, max_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield the body; refuse one that is too large."""
    left = max_bytes
    async for chunk in request.stream():
        left -= len(chunk)
        if left < 0:
            detail = f"the body is over the limit of {max_bytes / 10**6:g} MB; send less"
            raise Problem(413, detail, headers={"Connection": "close"})
        yield chunk


def _validated(kind: type[Options], given: list[tuple[str, Any]]) -> Options:
    for name, count in Counter(name for name, _ in given).items():
        if count > 1:
            raise option_problem(name, "is given twice")
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        errors = []
        for each in error.errors():
            detail = each["msg"].removeprefix("Value error, ")
            if detail.startswith("Extra inputs"):
                detail = f"there is no such option; there are {', '.join(kind.model_fields)}"
            errors.append({"name": ".".join(map(str, each["loc"])), "detail": detail})
        first = ": ".join(filter(None, errors[0].values()))
        raise Problem(422, first, errors=errors) from None


async def _read_form(
    request: Request, body: AsyncGenerator[bytes, None]
) -> tuple[list[Photo], list[tuple[str, Any]]]:
    """Return the photos (files or addresses) and the other fields of a multipart form."""
    parser = MultiPartParser(
        request.headers,
        body,
        max_files=MAX_PHOTOS,
        max_fields=MAX_FIELDS,
        max_part_size=MAX_FIELD_BYTES,
    )
    parser.spool_max_size = 2**62  # in memory: nothing uploaded touches the disk
    try:
        form = await parser.parse()
    except (MultiPartException, UnicodeError) as error:
        raise Problem(400, f"the multipart body cannot be read: {error}") from None
    photos, fields = [], []
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            if name != IMAGE:
                raise option_problem(name, f"is a file; photos have the field '{IMAGE}'")
            photos.append(Photo(value.filename or "photo", await value.read()))
        elif name != IMAGE:
            fields.append((name, value))
        elif is_url(value):
            photos.append(Photo(value, value))
        else:
            raise option_problem(IMAGE, "is a file: give it a filename (curl -F image=@photo.jpg)")
    await form.close()
    return photos, fields


def _read_json(body: bytes) -> tuple[list[Photo], list[tuple[str, Any]], bool]:
    """Return the photos and options of JSON, and whether the photos are a list."""
    try:
        content = json.loads(body)
        images = content.pop(IMAGE, [])
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise Problem(400, f"the body is no JSON object such as {{'{IMAGE}': BASE64}}") from None
    texts = images if isinstance(images, list) else [images]
    photos = []
    for number, text in enumerate(texts, start=1):
        if isinstance(text, str) and is_url(text):
            photos.append(Photo(text, text))
            continue
        try:
            encoded = text.partition(",")[2] if text.startswith("data:") else text
            photos.append(Photo(f"photo {number}", base64.b64decode(encoded, validate=True)))
        except (AttributeError, ValueError):
            raise option_problem(
                IMAGE, f"photo {number} is neither base64, nor a data URL, nor an address"
            ) from None
    return photos, list(content.items()), isinstance(images, list)


def describe_request(kind: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI parameters and body of what photo_request_reader reads."""
    parameters = [
        {"name": name, "in": "query", "schema": schema, "description": schema["description"]}
        | ({"example": example[name]} if name in example else {})
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
