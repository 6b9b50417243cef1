"""A caption as named arrays, for .npz files, and back."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict, fields

import numpy as np
from PIL import Image

from captioner.types import Caption, Geometry

_FIELDS = (
    *("text", "maps", "log_probs", "end_log_prob", "beta", "cells", "heads", "paths"),
    *("confidence", "confidence_threshold"),
)


def caption_arrays(caption: Caption) -> dict[str, np.ndarray]:
    """Return all that a caption holds, as named arrays that need no pickle.

    Returns:
        text, words, maps [T, rows, columns], log_probs; end_log_prob, beta, cells, heads, paths,
        confidence and confidence_threshold where there are any; and the fields of its geometry, by
        their names.
    """
    arrays = {"words": np.array(caption.words, dtype=np.str_)}
    for name in _FIELDS:
        if getattr(caption, name) is not None:
            arrays[name] = np.asarray(getattr(caption, name))
    return arrays | {name: np.asarray(value) for name, value in asdict(caption.geometry).items()}


def caption_from_arrays(arrays: Mapping[str, np.ndarray]) -> Caption:
    """Return the caption of such arrays, as `caption_arrays` returns or np.load reads them.

    Files of earlier versions have neither the text nor the confidence.

    Raises:
        KeyError: An array is missing.
        ValueError: Arrays that are not those of a caption.
    """
    geometry = Geometry(**{field.name: arrays[field.name].item() for field in fields(Geometry)})
    # An array without dimensions is a number.
    values = {
        name: arrays[name] if arrays[name].ndim else arrays[name].item()
        for name in _FIELDS
        if name in arrays
    }
    return Caption(
        **{"words": arrays["words"].tolist(), "geometry": geometry, "beta": None, **values}
    )


def png(image: Image.Image) -> bytes:
    """Return the bytes of an RGB image as PNG, in half of the time that Pillow takes.

    Pillow tries five filters for every line, which takes longer than to pack them. Here every line
    is the difference to the line above it; files are as large.
    """
    pixels = np.asarray(image.convert("RGB")).reshape(image.height, 3 * image.width)
    lines = np.empty((image.height, 1 + pixels.shape[1]), dtype=np.uint8)
    lines[:, 0] = 2  # the filter "up"
    lines[0, 1:] = pixels[0]
    np.subtract(pixels[1:], pixels[:-1], out=lines[1:, 1:])
    header = struct.pack(">IIBBBBB", *image.size, 8, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n"
    for kind, data in (
        (b"IHDR", header),
        (b"IDAT", zlib.compress(lines.tobytes(), 1)),
        (b"IEND", b""),
    ):
        checksum = zlib.crc32(kind + data)
        content += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)
    return content


def data_url(image: Image.Image) -> str:
    """Return an image as a data URL of a JPEG."""
    file = io.BytesIO()
    image.save(file, format="JPEG", quality=88, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
