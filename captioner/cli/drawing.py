"""Pictures of captions, drawn in this process or in others next to the captioning."""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from captioner import visualization as v
from captioner.cli.output import of_head
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


class PictureWriter:
    """Draws the captions of a run's photos into `--output`, as the options say.

    Args:
        names: NAME under which the pictures of each photo are saved.
        failed: Called with a photo whose pictures cannot be saved, and the reason.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        names: Mapping[Path | str, str],
        failed: Callable[[Path | str, object], None],
    ) -> None:
        self.arguments, self.names, self.failed = arguments, names, failed
        self._pool: ProcessPoolExecutor | None = None

    @contextmanager
    def processes(self, photos: int) -> Iterator[int]:
        """Draw so many photos in other processes, if they are worth it.

        Yields:
            How many photos may wait for their pictures.

        Raises:
            CaptionerError: A process was killed.
        """
        if photos < PROCESSES_FROM or not self.arguments.save:
            yield 0
            return
        context = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
        if sys.platform != "win32":
            context.set_forkserver_preload(["captioner.cli.drawing", "matplotlib"])
        self._pool = ProcessPoolExecutor(usable_cores(), context, _ignore_interrupts)
        try:
            yield 2 * usable_cores() + 2
        except BrokenProcessPool:
            raise CaptionerError(
                "a process that drew pictures was killed, as for want of memory; the same command "
                "with --resume does the rest"
            ) from None
        finally:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def begin(
        self, photo: Path | str, image: Image.Image, captions: Sequence[tuple[str, Caption]]
    ) -> Callable[[], list[Path]]:
        """Begin to draw a photo's captions.

        Args:
            captions: Names of models and their captions.

        Returns:
            A function that waits for the files and returns them. It reports why some are missing.
        """
        # The image is sent once, next to the captions.
        captions = [(name, replace(caption, image=None)) for name, caption in captions]
        work = (self.names[photo], Path(photo).name, image, captions, self.arguments)
        if self._pool is None or image.width * image.height > LARGEST_APART_PX:
            drawn = draw(*work)
            waiting = None
        else:
            waiting = self._pool.submit(draw, *work)

        def finished() -> list[Path]:
            pictures, problem = drawn if waiting is None else waiting.result()
            if problem is not None:
                self.failed(photo, problem)
            return pictures

        return finished


def _ignore_interrupts() -> None:
    """Let Ctrl-C end the process that captions, which then ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def draw(
    name: str,
    title: str,
    image: Image.Image,
    captions: Sequence[tuple[str, Caption]],
    options: argparse.Namespace,
) -> tuple[list[Path], str | None]:
    """Save the pictures of a photo's captions.

    Args:
        name: Begins the names of the files.
        title: Name of the photo, for a page.
        captions: Names of models and their captions, without the image.
        options: Those of the command.

    Returns:
        The files that were saved, and why it ended before the last, or None.
    """
    shown = of_head(captions, options)
    caption = replace(shown[0][1], image=image)
    style = v.OverlayStyle(
        kind=options.style,
        smooth=not options.cells,
        colour_map=options.colour_map,
        opacity=options.opacity,
        threshold=options.threshold,
    )
    content = "comparison" if options.compare else "attention"
    pictures: list[Path] = []

    def save(file_name: str, write: Callable[[Path], object]) -> None:
        write(options.output / file_name)
        pictures.append(options.output / file_name)

    try:
        for kind in options.save:
            file_name = v.picture_name(name, content, kind)
            if kind == "words":
                drawn = v.word_images(image, caption, style)
                for word, picture in zip(v.word_names(name, caption.words), drawn, strict=True):
                    save(word, partial(v.save_png, picture))
            elif kind == "matrix":
                for form in ("png", *sorted({"pdf", "svg"} & set(options.save))):
                    matrix = v.matrix_bytes(caption, form, style)
                    save(v.picture_name(name, "matrix", form), partial(save_bytes, matrix))
            elif kind == "html":  # with all layers and heads to choose from
                head = {"layer": options.layer, "head": options.head}
                page = v.caption_page(image, captions, name=title, style=style, **head)
                save(file_name, partial(save_bytes, page.encode(errors="replace")))
            elif not options.compare:
                save(file_name, lambda file: v.save_caption(caption, file, style))
            elif kind == "png":
                save(file_name, partial(v.save_png, v.comparison_sheet(image, shown, style)))
            else:  # pdf or svg
                sheet = v.vector_sheet(image, shown, style).to_bytes(kind)
                save(file_name, partial(save_bytes, sheet))
    except CaptionerError as error:
        return pictures, str(error)
    return pictures, None
