"""Strangers' bytes to the network's input, so that no file can take the server down.

Each file is decoded in a process apart, with a limit on its pixels, its memory and its time: a
decoder that crashes, hangs or fills the memory costs its own request and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import queue
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from captioner.data.transforms import ImageTransform
from captioner.serving import decoder
from captioner.serving.problems import Problem
from captioner.types import Geometry

MEMORY_BYTES = 2 * 2**30
WORKERS = 2  # processes that decode


@dataclass(frozen=True)
class ReadPhoto:
    """A photo as the model sees it, and as a page shows it.

    pixels: float32 [3, height, width]. geometry: of the photo in its own size. picture: the photo
    no larger than was asked for, or None.
    """

    pixels: Tensor
    geometry: Geometry
    picture: Image.Image | None


class PhotoReader:
    """A few processes that decode, each with a thread that waits for it."""

    def __init__(
        self,
        *,
        max_pixels: int,
        time_limit_s: float,
        memory_bytes: int = MEMORY_BYTES,
        workers: int = WORKERS,
    ) -> None:
        self.max_pixels, self.time_limit_s = max_pixels, time_limit_s
        # A fork of the server itself would copy the locks of its threads in any state.
        kind = "spawn" if sys.platform == "win32" else "forkserver"
        self._context = multiprocessing.get_context(kind)
        if kind == "forkserver":
            self._context.set_forkserver_preload([decoder.__name__])
        self._memory_bytes = memory_bytes
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for _ in range(workers):
            self._idle.put(_Worker(self._context, memory_bytes))
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="photo")

    async def read(
        self, data: bytes, transform: ImageTransform, *, picture_px: int = 0
    ) -> ReadPhoto:
        """Decode a file; picture_px: longest side of the picture to keep, 0 for none.

        Raises:
            Problem: 415, no photo of a known format; 422, too large, damaged or too slow.
        """
        running = asyncio.get_running_loop()
        return await running.run_in_executor(self._threads, self._read, data, transform, picture_px)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        while not self._idle.empty():
            self._idle.get().end()

    def _read(self, data: bytes, transform: ImageTransform, picture_px: int) -> ReadPhoto:
        worker = self._idle.get()
        try:
            return worker.read((transform, self.max_pixels, picture_px), data, self.time_limit_s)
        except _Lost as lost:
            worker.end()
            worker = _Worker(self._context, self._memory_bytes)
            raise Problem(422, f"the photo {lost}") from None
        finally:
            self._idle.put(worker)


class _Lost(Exception):
    """A process that is of no more use; the message says what the photo did to it."""


class _Worker:
    """One process and our end of its pipe."""

    def __init__(self, context: Any, memory_bytes: int) -> None:
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=decoder.main, args=(theirs, memory_bytes), daemon=True
        )
        self._process.start()
        theirs.close()

    def read(
        self, request: tuple[ImageTransform, int, int], data: bytes, time_limit_s: float
    ) -> ReadPhoto:
        try:
            self._connection.send(request)
            self._connection.send_bytes(data)
            if not self._connection.poll(time_limit_s):
                raise _Lost(f"takes more than {time_limit_s:g} s to decode; make it smaller")
            header = json.loads(self._connection.recv_bytes())
            if "error" in header:
                raise Problem(int(header["error"]["status"]), str(header["error"]["detail"]))
            pixels = np.frombuffer(self._connection.recv_bytes(), dtype=np.float32)
            content = self._connection.recv_bytes()
            size = header["picture"]
            return ReadPhoto(
                torch.from_numpy(pixels.reshape(header["shape"]).copy()),
                Geometry(**header["geometry"]),
                Image.frombytes("RGB", tuple(size), content) if size else None,
            )
        except (EOFError, OSError, KeyError, TypeError, ValueError):
            raise _Lost("is damaged: it crashed its decoder") from None

    def end(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.join()
