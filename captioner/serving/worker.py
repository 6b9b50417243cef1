"""The processes that decode images and draw pictures: each may crash, hang or fill its memory.

They run `main` and are started by `captioner.serving.pool`. The module imports little, so that a
decoding process starts fast.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from PIL import Image, UnidentifiedImageError

from captioner.data.transforms import (
    IMAGE_FORMATS,
    ImageTransform,
    accepted_formats,
    open_image,
)
from captioner.errors import ImageError
from captioner.types import Caption

# The answer of a task: a JSON header, and further parts as plain bytes.
Answer = tuple[dict[str, Any], list[bytes]]

# A task that takes more seconds of the processor makes way for short ones, by its niceness.
SLOW_CPU_S, LOW_PRIORITY = 0.5, 10

IMAGE_NAME = "your photo"  # the name of the uploaded file appears in no picture


class RefusedError(Exception):
    """A request that is answered with an HTTP status and one sentence."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


def main(connection: Connection, task: str, memory_bytes: int) -> None:
    """Run one task after another until the other end closes the connection.

    Receives the task's arguments as a pickled tuple from the server, which is trusted. Sends a
    JSON header (with the number of `parts`) and then the parts. The server never unpickles what
    this process sends: after an exploit in an image decoder it could be anything.

    Args:
        memory_bytes: Address space that the process may use in addition to what it has now.
    """
    # Ctrl-C reaches the whole process group; the server finishes its requests first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _limit_memory(memory_bytes)
    if sys.platform != "win32":
        signal.signal(signal.SIGPROF, lambda *_: os.nice(LOW_PRIORITY))
    try:
        while True:
            _run_task(connection, *TASKS[task])
    except EOFError:
        return


def _run_task(connection: Connection, run: Callable[..., Answer], too_large: str) -> None:
    """Receive the arguments of a task, run it, and send its answer."""
    arguments = connection.recv()
    priority = 0 if sys.platform == "win32" else os.nice(0)
    header: dict[str, Any]
    parts: list[bytes] = []
    _set_processor_timer(SLOW_CPU_S)
    try:
        header, parts = run(*arguments)
    except RefusedError as error:
        header = {"refused": {"status": error.status, "detail": error.detail}}
    except MemoryError:
        header = {"refused": {"status": 422, "detail": too_large}}
    except Exception:  # noqa: BLE001  the server logs it
        header = {"failed": traceback.format_exc()}
    _set_processor_timer(0)
    header["low_priority"] = sys.platform != "win32" and os.nice(0) > priority
    connection.send_bytes(json.dumps({**header, "parts": len(parts)}).encode())
    for part in parts:
        connection.send_bytes(part)


def decode(data: bytes, transform: ImageTransform, max_pixels: int, preview_px: int) -> Answer:
    """Decode the bytes of a file to the network's input.

    Args:
        max_pixels: Limit of width x height.
        preview_px: Longest side of the reduced image to return as well; 0 for none.

    Returns:
        A header with `shape`, `geometry` and `preview` (width and height, or None), the input as
        float32 and the preview as RGB bytes.

    Raises:
        RefusedError: 415 for a file of no accepted format, 422 for an image that is too large or
            damaged.
    """
    image = open_upload(data, max_pixels)
    pixels, geometry = transform.array(image)
    header = {"shape": pixels.shape, "geometry": vars(geometry), "preview": None}
    if not preview_px:
        return header, [pixels.tobytes()]
    image.thumbnail((preview_px, preview_px), Image.Resampling.LANCZOS)  # if it is larger
    return {**header, "preview": image.size}, [pixels.tobytes(), image.tobytes()]


def open_upload(data: bytes, max_pixels: int) -> Image.Image:
    """Return the upright RGB image as `open_image` does, after its header was checked.

    Raises:
        RefusedError: As in `decode`.
    """
    if not data:
        raise RefusedError(422, "there is no photo in the request")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            file = io.BytesIO(data)
            with Image.open(file, formats=accepted_formats(file)) as header:
                width, height = header.size
    except ImageError:
        raise RefusedError(
            415,
            "the photo is HEIC, which this server does not read (pillow-heif is not installed "
            "there); convert it to JPEG",
        ) from None
    except UnidentifiedImageError:
        formats = ", ".join(IMAGE_FORMATS)
        raise RefusedError(
            415, f"the file is not a photo of a known format ({formats}), or is cut short"
        ) from None
    except Image.DecompressionBombError:
        width, height = 0, 0
    except Exception:  # noqa: BLE001  Pillow raises almost anything; open_image says what is wrong
        width, height = 1, 1
    if not 0 < width * height <= max_pixels:
        size = f"has {width} x {height} pixels and " if width else ""
        raise RefusedError(
            422,
            f"the photo {size}is over the limit of {max_pixels / 10**6:g} megapixels; make it "
            "smaller",
        )
    try:
        return open_image(data)
    except ImageError as error:
        raise RefusedError(422, f"the photo {error}") from None


def draw(form: str, size: tuple[int, int], rgb: bytes, caption: Caption, model: str) -> Answer:
    """Draw a caption with its attention maps.

    Args:
        form: `png` (a sheet of all words), `gif` (word after word) or `html` (the viewer).
        size: Width and height of the image in pixels.
        rgb: The image, which may be a reduced one.
        caption: A caption of the photo in its original size.
    """
    from captioner.visualization import caption_gif, caption_page
    from captioner.visualization.notebook import caption_png

    image = Image.frombytes("RGB", size, rgb)
    original_size = (caption.geometry.photo_width_px, caption.geometry.photo_height_px)
    caption = replace(caption, geometry=caption.geometry.scaled(*size), image=image)
    if form == "html":
        named = [(model, caption)]
        page = caption_page(image, named, name=IMAGE_NAME, original_size=original_size)
        return {}, [page.encode()]
    if form == "gif":
        return {}, [caption_gif(image, caption)]
    return {}, [caption_png(caption, original_size=original_size)]


# Each task, and the sentence for the client where it does not fit in memory.
TASKS: dict[str, tuple[Callable[..., Answer], str]] = {
    "decode": (decode, "the photo does not fit in memory; make it smaller"),
    "draw": (draw, "the picture does not fit in memory; use a shorter caption"),
}


def _set_processor_timer(seconds: float) -> None:
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _limit_memory(memory_bytes: int) -> None:
    """Limit the address space of this process, on Linux."""
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
