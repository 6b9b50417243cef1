"""The process that decodes strangers' bytes: it may crash, hang or run out of memory alone.

Imports little, so that a new one is there in no time.
"""

from __future__ import annotations

import io
import json
import signal
import sys
import warnings
from multiprocessing.connection import Connection

import numpy as np
from PIL import Image, UnidentifiedImageError

from captioner.data.transforms import IMAGE_FORMATS, open_image
from captioner.errors import ImageError


class Refused(Exception):
    """A photo that is answered with an HTTP status and one sentence."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


def main(connection: Connection, memory_bytes: int) -> None:
    """Answer until the other end closes.

    Takes (transform, max_pixels, picture_px) and the file's bytes; gives a JSON header and, where
    it holds no error, the network's input as float32 and the small picture as RGB bytes. Nothing
    that comes back is ever unpickled: after a decoder's exploit it could be anything.
    """
    # Ctrl-C reaches a whole group of processes; the server lets its requests finish first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _limit_memory(memory_bytes)
    while True:
        try:
            transform, max_pixels, picture_px = connection.recv()
            data = connection.recv_bytes()
        except EOFError:
            return
        try:
            image = decoded(data, max_pixels)
            pixels, geometry = transform(image)
            picture = _small(image, picture_px)
        except Refused as refused:
            error = {"status": refused.status, "detail": refused.detail}
            connection.send_bytes(json.dumps({"error": error}).encode())
            continue
        except MemoryError:
            error = {"status": 422, "detail": "the photo does not fit in memory; make it smaller"}
            connection.send_bytes(json.dumps({"error": error}).encode())
            continue
        header = {
            "shape": list(pixels.shape),
            "geometry": vars(geometry),
            "picture": picture.size if picture else None,
        }
        connection.send_bytes(json.dumps(header).encode())
        connection.send_bytes(pixels.numpy().astype(np.float32, copy=False).tobytes())
        connection.send_bytes(picture.tobytes() if picture else b"")


def decoded(data: bytes, max_pixels: int) -> Image.Image:
    """The photo as `open_image` gives it, after a look at its header.

    Raises:
        Refused: 415 for what is no photo of an accepted format, 422 for one that is too large or
            damaged.
    """
    if not data:
        raise Refused(422, "there is no photo in the request")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=IMAGE_FORMATS) as header:
                width, height = header.size
    except UnidentifiedImageError:
        formats = ", ".join(IMAGE_FORMATS)
        raise Refused(
            415, f"the file is not a photo of a known format ({formats}), or is cut short"
        ) from None
    except Image.DecompressionBombError:
        width, height = 0, 0
    except Exception:  # noqa: BLE001  Pillow raises almost anything; open_image says what is wrong
        width, height = 1, 1
    if not 0 < width * height <= max_pixels:
        many = f"has {width} x {height} pixels and " if width else ""
        raise Refused(
            422,
            f"the photo {many}is over the limit of {max_pixels / 10**6:g} megapixels; make it "
            "smaller",
        )
    try:
        return open_image(data)
    except ImageError as error:
        raise Refused(422, f"the photo {error}") from None


def _small(image: Image.Image, picture_px: int) -> Image.Image | None:
    if not picture_px:
        return None
    if max(image.size) > picture_px:
        image.thumbnail((picture_px, picture_px), Image.Resampling.LANCZOS)
    return image


def _limit_memory(memory_bytes: int) -> None:
    if sys.platform != "linux":
        return
    import resource

    with open("/proc/self/statm", encoding="ascii") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = mapped + memory_bytes
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
