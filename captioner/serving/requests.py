"""A photo and its options out of a request: raw bytes, or a multipart form."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from captioner.serving.problems import Problem

MULTIPART = "multipart/form-data"
RAW = (
    "image/jpeg image/png image/gif image/webp image/bmp image/tiff image/avif "
    "image/x-portable-pixmap application/octet-stream"
).split()
PHOTO_FIELD = "image"
Options = TypeVar("Options", bound=BaseModel)


async def photo_and_options(
    request: Request, kind: type[Options], max_bytes: int
) -> tuple[bytes, Options]:
    """The photo's bytes and the options of the query or, in a form, of its other fields.

    Raises:
        Problem: 400, 413, 415 or 422.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    given = list(request.query_params.multi_items())
    if media_type not in (MULTIPART, *RAW) and not media_type.startswith("image/"):
        raise Problem(
            415,
            f"send the photo as {MULTIPART} with the field {PHOTO_FIELD}, or its bytes as "
            f"image/* or {RAW[-1]}",
        )
    body = await _body(request, max_bytes)
    if media_type == MULTIPART:
        body, fields = await _form(request, body)
        given += fields
    return body, validated(kind, given)


def validated(kind: type[Options], given: list[tuple[str, str]]) -> Options:
    """Options from names and texts.

    Raises:
        Problem: 422, with every option that is wrong.
    """
    names = [name for name, _ in given]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        errors = [{"name": name, "detail": "is given twice"} for name in twice]
        raise Problem(422, f"{twice[0]} is given twice", errors=errors)
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        errors = [_told(each["loc"], str(each["msg"]), kind) for each in error.errors()]
        first = errors[0]
        detail = f"{first['name']}: {first['detail']}" if first["name"] else first["detail"]
        raise Problem(422, detail, errors=errors) from None


def _told(location: tuple[int | str, ...], message: str, kind: type[BaseModel]) -> dict[str, str]:
    name = ".".join(map(str, location))
    if message.startswith("Extra inputs"):
        message = f"there is no such option; there are {', '.join(kind.model_fields)}"
    return {"name": name, "detail": message.removeprefix("Value error, ")}


async def _body(request: Request, max_bytes: int) -> bytes:
    too_large = Problem(
        413,
        f"the body is over the limit of {max_bytes / 10**6:g} MB; send a smaller photo",
        headers={"Connection": "close"},  # what is still on its way is not read
    )
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > max_bytes:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise too_large
    return bytes(body)


async def _form(request: Request, body: bytes) -> tuple[bytes, list[tuple[str, str]]]:
    async def stream() -> AsyncGenerator[bytes, None]:
        yield body
        yield b""

    parser = MultiPartParser(request.headers, stream(), max_files=1, max_fields=20)
    parser.spool_max_size = len(body) + 1  # in memory: nothing uploaded touches the disk
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise Problem(400, f"the multipart body cannot be read: {error.message}") from None
    photos: list[bytes] = []
    fields: list[tuple[str, str]] = []
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            if name == PHOTO_FIELD:
                photos.append(await value.read())
            else:
                raise Problem(422, f"the file of the form is in the field '{PHOTO_FIELD}'")
        elif name == PHOTO_FIELD:
            raise Problem(422, f"the field {PHOTO_FIELD} is a file: give it a filename")
        else:
            fields.append((name, value))
    await form.close()
    if not photos:
        raise Problem(422, f"the form has no photo in the field '{PHOTO_FIELD}'")
    return photos[0], fields


def operation(kind: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI parameters and body of a request that photo_and_options reads."""
    schema = kind.model_json_schema()
    properties: dict[str, Any] = schema["properties"]
    required = schema.get("required", [])
    parameters = [
        {
            "name": name,
            "in": "query",
            "required": name in required,
            "description": each.get("description", ""),
            "schema": _plain(each),
        }
        for name, each in properties.items()
    ]
    for parameter in parameters:
        if parameter["name"] in example:
            parameter["example"] = example[parameter["name"]]
    photo = {"type": "string", "format": "binary", "description": "the bytes of a photo's file"}
    form = {
        "type": "object",
        "required": [PHOTO_FIELD],
        "additionalProperties": False,
        "properties": {PHOTO_FIELD: photo},
        "description": "The options may stand in the form too, instead of the query.",
    }
    content: dict[str, Any] = {MULTIPART: {"schema": form}}
    content.update({media_type: {"schema": photo} for media_type in RAW})
    return {"parameters": parameters, "requestBody": {"required": True, "content": content}}


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A property without its null: a parameter that is not given is not there."""
    kept = {key: value for key, value in schema.items() if key not in ("title", "description")}
    for option in kept.pop("anyOf", []):
        if option.get("type") != "null":
            kept.update(option)
    if kept.get("default", ...) is None:
        del kept["default"]
    return kept
