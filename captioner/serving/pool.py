"""Pools of processes for work that must not take the server down: decoding and drawing.

An uploaded file or a long caption may crash, hang or fill the memory of the process that works on
it. That process is killed and replaced, and only its own request fails.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import queue
import sys
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from captioner.data.transforms import ImageTransform
from captioner.serving import worker
from captioner.serving.fairness import FairSemaphore
from captioner.serving.problems import Problem
from captioner.types import Caption, Geometry

WORKERS = 3  # processes a pool
# A process is replaced after this many tasks, so that memory which its allocator keeps is returned.
TASKS_PER_PROCESS = 200
# Most tasks end sooner by themselves than a new process would start.
CANCEL_GRACE_S = 0.5

MEDIA_TYPES = {"png": "image/png", "gif": "image/gif", "html": "text/html"}


class WorkerTimeoutError(Exception):
    """The task took longer than its limit; its process was killed."""


class WorkerCrashError(Exception):
    """The process ended during the task, or its answer made no sense."""


class WorkerPool:
    """A few processes that run one task of `captioner.serving.worker`.

    Args:
        task: A key of `worker.TASKS`.
        memory_bytes: Memory limit of each process.
        time_limit_s: Seconds for one call, without the time that it waits for a free process.
        workers: Number of processes; one client has all but one of them at once.
    """

    def __init__(self, task: str, memory_bytes: int, *, time_limit_s: float, workers: int) -> None:
        self.task, self.memory_bytes, self.time_limit_s = task, memory_bytes, time_limit_s
        # A fork of the server itself would copy the locks of its threads in any state.
        method = "spawn" if sys.platform == "win32" else "forkserver"
        self._context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            self._context.set_forkserver_preload([worker.__name__, "captioner.visualization"])
        self._closing = False
        self._processes: set[_WorkerProcess] = set()
        self._free: queue.SimpleQueue[_WorkerProcess] = queue.SimpleQueue()
        for _ in range(workers):
            self._free.put(self._new_process())
        self._places = FairSemaphore(workers)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix=task)

    @property
    def process_ids(self) -> list[int]:
        """The running processes."""
        return [process.pid for process in list(self._processes)]

    async def call(self, client: str, *arguments: Any) -> worker.Answer:
        """Run the task in a free process; a cancelled call is ended after CANCEL_GRACE_S.

        Returns:
            The task's header and parts.

        Raises:
            Problem: The task refused the request.
            WorkerTimeoutError, WorkerCrashError: The process was lost, or two in a row.
            RuntimeError: The task failed with an exception that nobody foresaw.
        """
        call = _Call(arguments)
        loop = asyncio.get_running_loop()
        try:
            async with self._places.hold(client):
                header, parts = await loop.run_in_executor(self._threads, self._run, call)
        except asyncio.CancelledError:
            call.cancelled = True
            loop.call_later(CANCEL_GRACE_S, call.kill)
            raise
        if "refused" in header:
            raise Problem(int(header["refused"]["status"]), str(header["refused"]["detail"]))
        if "failed" in header:
            raise RuntimeError(f"the task '{self.task}' failed:\n{header['failed']}")
        return header, parts

    def close(self) -> None:
        """Kill the processes; calls that wait end with an error."""
        self._closing = True
        for process in list(self._processes):
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in list(self._processes):
            self._discard(process)

    def _run(self, call: _Call) -> worker.Answer:
        """Run a call in a free process, in a second one if the first has died."""
        process = self._free.get()
        try:
            if process.tasks >= TASKS_PER_PROCESS or not process.is_alive():
                process = self._replace(process)
            try:
                return process.run(call, self.time_limit_s)
            except WorkerCrashError:
                if call.cancelled or self._closing:
                    raise
                # The process may have died before the task reached it, so try once more.
                process = self._replace(process)
                return process.run(call, self.time_limit_s)
        except (WorkerTimeoutError, WorkerCrashError):
            process = self._replace(process)
            raise
        finally:
            self._free.put(process)

    def _new_process(self) -> _WorkerProcess:
        process = _WorkerProcess(self._context, self.task, self.memory_bytes)
        self._processes.add(process)
        return process

    def _replace(self, process: _WorkerProcess) -> _WorkerProcess:
        if self._closing:
            return process
        self._discard(process)
        return self._new_process()

    def _discard(self, process: _WorkerProcess) -> None:
        self._processes.discard(process)
        process.end()


class _Call:
    """One call of a pool: its arguments, and the process that works on it."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.arguments = arguments
        self.cancelled = False
        self._lock = threading.Lock()
        self._process: _WorkerProcess | None = None

    def begin(self, process: _WorkerProcess) -> None:
        with self._lock:
            if self.cancelled:
                raise CancelledError
            self._process = process

    def end(self) -> None:
        with self._lock:
            self._process = None

    def kill(self) -> None:
        """Kill the process that works on the call, if one still does."""
        with self._lock:
            if self._process is not None:
                self._process.kill()


class _WorkerProcess:
    """A process, and the server's end of its pipe."""

    def __init__(self, context: Any, task: str, memory_bytes: int) -> None:
        self.tasks = 0
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=worker.main, args=(theirs, task, memory_bytes), daemon=True
        )
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def is_alive(self) -> bool:
        return bool(self._process.is_alive())

    def run(self, call: _Call, time_limit_s: float) -> worker.Answer:
        """Send the arguments and wait for the answer.

        A process that hangs may do so while it reads its arguments as well, so the limit is kept by
        a timer that kills it, whatever the pipe is doing.
        """
        self.tasks += 1
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self.kill()

        call.begin(self)
        timer = threading.Timer(time_limit_s, expire)
        timer.daemon = True
        timer.start()
        try:
            self._connection.send(call.arguments)
            header = dict(json.loads(self._connection.recv_bytes()))
            if header.get("low_priority"):  # which it cannot raise again
                self.tasks = TASKS_PER_PROCESS
            return header, [self._connection.recv_bytes() for _ in range(int(header["parts"]))]
        except (EOFError, OSError, LookupError, TypeError, ValueError, RecursionError):
            raise (WorkerTimeoutError if expired.is_set() else WorkerCrashError) from None
        finally:
            timer.cancel()
            call.end()

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        self._process.kill()
        self._connection.close()
        self._process.join()


@dataclass(frozen=True)
class DecodedImage:
    """An uploaded image.

    Attributes:
        pixels: The network's input, float32 [3, height, width].
        geometry: How the input lies on the image in its original size.
        preview: The image reduced to the size that was requested, or None.
    """

    pixels: np.ndarray
    geometry: Geometry
    preview: Image.Image | None


class ImageDecoder(WorkerPool):
    """Decodes uploaded files of at most `max_pixels` (width x height); see WorkerPool."""

    def __init__(
        self,
        *,
        max_pixels: int,
        time_limit_s: float,
        memory_bytes: int = 2 * 2**30,
        workers: int = WORKERS,
    ) -> None:
        super().__init__("decode", memory_bytes, time_limit_s=time_limit_s, workers=workers)
        self.max_pixels = max_pixels

    async def decode(
        self, data: bytes, transform: ImageTransform, *, preview_px: int = 0, client: str = ""
    ) -> DecodedImage:
        """Decode the bytes of a file.

        Args:
            data: What was uploaded.
            transform: The model's preprocessing.
            preview_px: Longest side of the preview, or 0 for none.
            client: Who sent it.

        Raises:
            Problem: 415, no photo of a known format; 422, too large, damaged or too slow.
        """
        try:
            header, parts = await self.call(client, data, transform, self.max_pixels, preview_px)
        except WorkerTimeoutError:
            limit = self.time_limit_s
            raise Problem(
                422, f"the photo takes more than {limit:g} s to decode; make it smaller"
            ) from None
        except WorkerCrashError:
            raise Problem(422, "the photo is damaged: it crashed its decoder") from None
        pixels = np.frombuffer(parts[0], dtype=np.float32).reshape(header["shape"]).copy()
        size = header["preview"]
        return DecodedImage(
            pixels,
            Geometry(**header["geometry"]),
            Image.frombytes("RGB", tuple(size), parts[1]) if size else None,
        )


class Painter(WorkerPool):
    """Draws captions with their attention maps; see WorkerPool."""

    def __init__(
        self, *, time_limit_s: float, memory_bytes: int = 2**30, workers: int = WORKERS
    ) -> None:
        super().__init__("draw", memory_bytes, time_limit_s=time_limit_s, workers=workers)

    async def draw(
        self, form: str, image: Image.Image, caption: Caption, model: str, *, client: str = ""
    ) -> tuple[bytes, str]:
        """Return a file and its media type; the arguments are those of `worker.draw`.

        Raises:
            Problem: 422, it does not fit in memory; 504, it takes too long.
        """
        try:
            _, parts = await self.call(client, form, image.size, image.tobytes(), caption, model)
        except WorkerTimeoutError:
            raise Problem(
                504,
                f"the picture was not drawn within {self.time_limit_s:g} s; use a shorter "
                "caption, or another format",
            ) from None
        return parts[0], MEDIA_TYPES[form]
