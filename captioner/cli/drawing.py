"""The pictures of a photo's captions, drawn in this process or in others next to the captioning."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from captioner import visualization as v
from captioner.errors import CaptionerError
from captioner.files import save_bytes
from captioner.runtime.cores import usable_cores

if TYPE_CHECKING:
    from captioner.types import Caption

# Photos from which other processes draw: they take half a second to start. Threads do not help,
# because much of the drawing holds Python's lock.
PROCESSES_FROM = 12
# Larger photos are drawn at once and by this process: several may wait, and each is copied.
LARGEST_APART_PX = 16_000_000


@dataclass(frozen=True)
class Settings:
    """How all photos of a run are drawn.

    Args:
        compare: Several models on one sheet or page.
        gallery: File name of the gallery that the pages lead back to, if there is one.
    """

    kinds: tuple[str, ...]
    folder: Path
    style: v.OverlayStyle
    compare: bool = False
    layer: int | None = None
    head: int | None = None
    gallery: str | None = None

    @property
    def content(self) -> str:
        """What the file names of sheets and pages call their content."""
        return "comparison" if self.compare else "attention"


@dataclass(frozen=True)
class Drawing:
    """A photo whose captions are to be drawn: `name` begins the names of its files.

    Args:
        shown: Names of models and their captions, of the layer and head that are drawn.
        with_heads: The same with all layers and heads, for pages.
    """

    name: str
    title: str
    image: Image.Image
    shown: list[tuple[str, Caption]]
    with_heads: list[tuple[str, Caption]]


def draw(drawing: Drawing, settings: Settings) -> tuple[list[Path], str | None]:
    """Save the pictures of a photo's captions.

    Returns:
        The files that were saved, and why it ended before the last, or None.
    """
    pictures: list[Path] = []
    try:
        for kind in settings.kinds:
            pictures.extend(_save(kind, drawing, settings))
    except CaptionerError as error:
        return pictures, str(error)
    return pictures, None


class Drawer:
    """Draws in this process, or between `start` and `stop` in one process a core."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.ahead = 0  # photos that may wait for their pictures
        self._pool: ProcessPoolExecutor | None = None

    def start(self) -> None:
        """Start the processes."""
        context = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
        if sys.platform != "win32":
            context.set_forkserver_preload([__name__, "matplotlib"])
        self.ahead = 2 * usable_cores() + 2
        self._pool = ProcessPoolExecutor(usable_cores(), context, _ignore_interrupts)

    def stop(self) -> None:
        """End the processes; what they have not begun is not drawn."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool, self.ahead = None, 0

    def begin(self, drawing: Drawing) -> Callable[[], tuple[list[Path], str | None]]:
        """Begin to draw; what it returns waits for the end and has the result of `draw`."""
        large = drawing.image.width * drawing.image.height > LARGEST_APART_PX
        if self._pool is None or large:
            result = draw(drawing, self.settings)
            return lambda: result
        return self._pool.submit(draw, drawing, self.settings).result


def _ignore_interrupts() -> None:
    """Let Ctrl-C end the process that captions, which then ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _save(kind: str, drawing: Drawing, settings: Settings) -> Iterator[Path]:
    """Save one kind of picture, yielding the name of each file once it is there."""
    style, name, folder, image = settings.style, drawing.name, settings.folder, drawing.image
    caption = replace(drawing.shown[0][1], image=image)
    file = folder / v.picture_name(name, settings.content, kind)
    if kind == "words":
        pictures = v.word_images(image, caption, style)
        for picture, word in zip(pictures, v.word_names(name, caption.words), strict=True):
            v.save_png(picture, folder / word)
            yield folder / word
        return
    if kind == "matrix":
        for form in ("png", *sorted({"pdf", "svg"} & set(settings.kinds))):
            file = folder / v.picture_name(name, "matrix", form)
            save_bytes(v.matrix_bytes(caption, form, style), file)
            yield file
        return
    if kind == "html":
        text = v.caption_page(
            image,
            drawing.with_heads,
            name=drawing.title,
            style=style,
            layer=settings.layer,
            head=settings.head,
            gallery=settings.gallery,
        )
        save_bytes(text.encode(errors="replace"), file)
    elif not settings.compare:
        v.save_caption(caption, file, style)
    elif kind == "png":
        v.save_png(v.comparison_sheet(image, drawing.shown, style), file)
    else:  # pdf or svg
        page = v.vector_comparison(image, drawing.shown, style)
        save_bytes(page.to_bytes(kind), file)
    yield file
