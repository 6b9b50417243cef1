"""Read an image and its options from a request: raw bytes, or a multipart form.

FastAPI's own form parameters are not used: it reads a form before the dependencies run, so that a
client without a token could send anything, writes uploads of more than 1 MB to the disk, and takes
no raw body on the same route. The parser, the UploadFile and the models of the options are its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from captioner.serving.admission import Upload
from captioner.serving.problems import Problem

MULTIPART, BYTES = "multipart/form-data", "application/octet-stream"
IMAGE_TYPES = "jpeg png gif webp bmp tiff avif x-portable-pixmap".split()
RAW_TYPES = [*(f"image/{name}" for name in IMAGE_TYPES), BYTES]
IMAGE_FIELD = "image"
# Python has others: some take minutes for a megabyte (punycode), or fail as no parser expects.
CHARSETS = "utf-8", "utf8", "us-ascii", "iso-8859-1", "windows-1252"
PARSED_AT_ONCE = 2**16  # bytes of a form
MAX_OPTIONS = 20  # in the query, and as many again in a form
CLOSE = {"Connection": "close"}  # the rest of the body is not read
Options = TypeVar("Options", bound=BaseModel)


async def read_image_and_options(
    request: Request, kind: type[Options], max_bytes: int, upload: Upload
) -> tuple[bytes, Options]:
    """Return the image file's bytes, and the options of the query and the form's other fields.

    Raises:
        Problem: 400, 413, 415, 422 or 503.
        FullError: There is no memory for the body.
        ClientDisconnect: The client left before the body was complete.
    """
    if request.url.query.count("&") >= MAX_OPTIONS:
        raise Problem(422, f"the query has more than {MAX_OPTIONS} options", headers=CLOSE)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    options = list(request.query_params.multi_items())
    if media_type not in (MULTIPART, BYTES) and not media_type.startswith("image/"):
        raise Problem(
            415,
            f"send the photo as {MULTIPART} with the field {IMAGE_FIELD}, or its bytes as "
            f"image/* or {BYTES}",
        )
    body = await _read_body(request, max_bytes, upload)
    if media_type == MULTIPART:
        body, fields = await _parse_form(request, body)
        options += fields
    return body, validate_options(kind, options)


def validate_options(kind: type[Options], options: list[tuple[str, str]]) -> Options:
    """Return the options as their model.

    Raises:
        Problem: 422, naming every option that cannot be used.
    """
    counts = Counter(name for name, _ in options)
    repeated = sorted(name for name, count in counts.items() if count > 1)
    if repeated:
        errors = [{"name": name, "detail": "is given twice"} for name in repeated]
        raise Problem(422, f"{errors[0]['name']} is given twice", errors=errors)
    try:
        return kind.model_validate(dict(options))
    except ValidationError as error:
        errors = [_error(each["loc"], str(each["msg"]), kind) for each in error.errors()]
        first = errors[0]
        detail = f"{first['name']}: {first['detail']}" if first["name"] else first["detail"]
        raise Problem(422, detail, errors=errors) from None


def _error(location: tuple[int | str, ...], message: str, kind: type[BaseModel]) -> dict[str, str]:
    if message.startswith("Extra inputs"):
        message = f"there is no such option; there are {', '.join(kind.model_fields)}"
    return {"name": ".".join(map(str, location)), "detail": message.removeprefix("Value error, ")}


async def _read_body(request: Request, max_bytes: int, upload: Upload) -> bytes:
    """Return the body of a request; refuse one that is too large or has stalled."""
    too_large = Problem(
        413,
        f"the body is over the limit of {max_bytes / 10**6:g} MB; send a smaller photo",
        headers=CLOSE,
    )
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > max_bytes:
        raise too_large
    body = bytearray()
    with upload.scope:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                raise too_large
            upload.add(len(chunk))
    if upload.dropped:
        raise Problem(503, "the upload stalled while others needed its memory", headers=CLOSE)
    upload.complete = True
    return bytes(body)


async def _parse_form(request: Request, body: bytes) -> tuple[bytes, list[tuple[str, str]]]:
    """Return the image and the other fields of a multipart form."""
    _, parameters = parse_options_header(request.headers["content-type"])
    if parameters.get(b"charset", b"utf-8").decode("latin-1").lower() not in CHARSETS:
        raise Problem(400, f"the charset of the form is none of {', '.join(CHARSETS)}")

    async def stream() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(body), PARSED_AT_ONCE):
            yield body[start : start + PARSED_AT_ONCE]
            await asyncio.sleep(0)  # others get their turn: 20 MB of line ends take seconds
        yield b""

    parser = MultiPartParser(request.headers, stream(), max_files=1, max_fields=MAX_OPTIONS)
    parser.spool_max_size = len(body) + 1  # in memory: nothing uploaded touches the disk
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise Problem(400, f"the multipart body cannot be read: {error.message}") from None
    images: list[bytes] = []
    fields: list[tuple[str, str]] = []
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            if name == IMAGE_FIELD:
                images.append(await value.read())
            else:
                raise Problem(422, f"the file of the form is in the field '{IMAGE_FIELD}'")
        elif name == IMAGE_FIELD:
            raise Problem(422, f"the field {IMAGE_FIELD} is a file: give it a filename")
        else:
            fields.append((name, value))
    await form.close()
    if not images:
        raise Problem(422, f"the form has no photo in the field '{IMAGE_FIELD}'")
    return images[0], fields


def describe_request(kind: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI parameters and body of what `read_image_and_options` reads."""
    schema = kind.model_json_schema()
    properties: dict[str, Any] = schema["properties"]
    required = schema.get("required", [])
    parameters: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "query",
            "required": name in required,
            "description": each.get("description", ""),
            "schema": _without_null(each),
            **({"example": example[name]} if name in example else {}),
        }
        for name, each in properties.items()
    ]
    options = {each["name"]: each["schema"] for each in parameters}
    image = {"type": "string", "format": "binary", "description": "the bytes of a photo's file"}
    form = {
        "type": "object",
        "required": [IMAGE_FIELD],
        "additionalProperties": False,
        "properties": {IMAGE_FIELD: image, **options},
        "description": "The options may also be fields of the form instead of the query.",
    }
    content: dict[str, Any] = {MULTIPART: {"schema": form}}
    content.update({media_type: {"schema": image} for media_type in RAW_TYPES})
    return {"parameters": parameters, "requestBody": {"required": True, "content": content}}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a property's schema without null: a parameter that is not given is absent."""
    kept = {key: value for key, value in schema.items() if key not in ("title", "description")}
    for option in kept.pop("anyOf", []):
        if option.get("type") != "null":
            kept.update(option)
    if kept.get("default", ...) is None:
        del kept["default"]
    return kept
