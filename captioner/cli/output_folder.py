"""The folder of `--output`: pictures, and the journal of which photo each shows and what is done.

The journal, `captions.jsonl`, has one JSON object a photo: `image` (absolute path or address),
`bytes`, `modified_ns`, `settings` (a digest), `name`, `caption`, `confidence`, `pictures`. The last
counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from PIL import Image

from captioner.checkpoint import MANIFEST
from captioner.cli.parsing import STANDARD_INPUT
from captioner.data.images import png
from captioner.errors import CaptionerError
from captioner.files import JOURNAL, claim_name, read_journal, save_bytes, writing
from captioner.runtime.children import blocked_interrupts, child_pool
from captioner.runtime.parallel import usable_cores
from captioner.visualization import Caption, OverlayStyle, comparison_sheet, vector_sheet
from captioner.visualization.word_pictures import word_images, word_names

# Photos from which other processes draw: they take half a second to start. Threads do not help,
# because much of the drawing holds Python's lock.
PROCESSES_FROM = 12
# Larger photos are drawn at once and by this process: several may wait, and each is copied.
LARGEST_APART_PX = 16_000_000

Captions: TypeAlias = Sequence[tuple[str, Caption]]  # by the names of their models
Drawn: TypeAlias = tuple[list[Path], "str | None"]  # the files, and why some are missing


class OutputFolder:
    """Draws the captions of a run's photos, as the options say, and keeps the folder's journal.

    Each photo (a file, an address or `-`) gets a name for its pictures: that of an earlier run, or
    one that no other photo has. `settings` is a digest of all that decides captions and pictures.
    """

    def __init__(self, arguments: Namespace, photos: Sequence[Path | str], settings: str) -> None:
        self.arguments, self.settings = arguments, settings
        self.journal = arguments.output / JOURNAL
        self.records = read_journal(self.journal)
        self._pool: ProcessPoolExecutor | None = None
        owners = {record["name"].casefold(): image for image, record in self.records.items()}
        self.names: dict[Path | str, str] = {}
        for photo in photos:
            image = _place(photo)
            stem = "stdin" if photo == STANDARD_INPUT else Path(image).stem
            earlier = self.records.get(image, {}).get("name", stem)
            self.names[photo] = claim_name(owners, image, earlier, stem)

    def begin(self) -> None:
        """Write the journal anew, without lines that were replaced or cut short."""
        content = "".join(f"{json.dumps(record)}\n" for record in self.records.values())
        save_bytes(content.encode(), self.journal)

    def done(self, image: Path) -> dict[str, Any] | None:
        """Return the record of a photo that needs no work: same file, same settings, all there."""
        record = self.records.get(_place(image), {})
        expected = {"settings": self.settings, **_identity(image)}
        if any(record.get(key) != value for key, value in expected.items()):
            return None
        pictures = [self.journal.parent / name for name in record["pictures"]]
        return record if all(picture.is_file() for picture in pictures) else None

    def add(self, image: Path | str, content: Mapping[str, Any], pictures: Iterable[Path]) -> None:
        """Append a photo's record to the journal."""
        record = {
            "image": _place(image),
            **_identity(image),
            "settings": self.settings,
            "name": self.names[image],
            **content,
            "pictures": [picture.name for picture in pictures],
        }
        if "words" in self.arguments.save:  # those of a longer caption before are not replaced
            word = re.compile(rf"{re.escape(record['name'])}\.\d\d+-[^/\\]+\.png")
            before = self.records.get(record["image"], {}).get("pictures", ())
            for name in filter(word.fullmatch, set(before) - set(record["pictures"])):
                (self.journal.parent / name).unlink(missing_ok=True)
        with writing(self.journal), self.journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    @contextlib.contextmanager
    def processes(self, photos: int) -> Iterator[int]:
        """Draw so many photos in other processes, if it is worth it; yield how many may wait."""
        if photos < PROCESSES_FROM or not self.arguments.save:
            yield 0
            return
        try:
            with child_pool("captioner.cli.output_folder", "matplotlib") as self._pool:
                yield 2 * usable_cores() + 2
        except BrokenProcessPool:
            raise CaptionerError(
                "a process that drew pictures was killed, as for want of memory; the same command "
                "with --resume does the rest"
            ) from None
        finally:
            self._pool = None

    def draw(self, photo: Path | str, image: Image.Image, captions: Captions) -> Future[Drawn]:
        """Draw a photo's captions by each model, in another process if there are any."""
        # The image is sent once, next to the captions.
        captions = [(name, replace(caption, image=None)) for name, caption in captions]
        work = (self.names[photo], Path(photo).name, image, captions, self.arguments)
        if self._pool and image.width * image.height <= LARGEST_APART_PX:
            with blocked_interrupts():
                return self._pool.submit(save_pictures, *work)
        drawn: Future[Drawn] = Future()
        drawn.set_result(save_pictures(*work))
        return drawn


def save_pictures(
    name: str, title: str, image: Image.Image, captions: Captions, options: Namespace
) -> Drawn:
    """Save the pictures of a photo's captions, and say why it ended before the last.

    `name` begins the names of the files, `title` is the photo's for a page; the captions, by the
    names of their models, come without the image.
    """
    head = {"layer": options.layer, "head": options.head}
    shown = [(model, caption.of_head(**head)) for model, caption in captions]
    caption = replace(shown[0][1], image=image)
    style = OverlayStyle(
        kind=options.style,
        smooth=not options.cells,
        colour_map=options.colour_map,
        opacity=options.opacity,
        threshold=options.threshold,
    )

    content = "comparison" if options.compare else "attention"
    saved: list[Path] = []

    def save(file_name: str, data: bytes) -> None:
        save_bytes(data, options.output / file_name)
        saved.append(options.output / file_name)

    try:
        for kind in options.save:
            file_name = f"{name}.{content}.{kind}"
            if kind == "words":
                drawn = word_images(image, caption, style)
                for word, picture in zip(word_names(name, caption.words), drawn, strict=True):
                    save(word, png(picture))
            elif kind == "matrix":
                from captioner.visualization.figures import matrix_bytes

                for form in ("png", *sorted({"pdf", "svg"} & set(options.save))):
                    save(f"{name}.matrix.{form}", matrix_bytes(caption, form, style))
            elif kind == "html":  # with all layers and heads to choose from
                from captioner.visualization.page import caption_page

                page = caption_page(image, captions, name=title, style=style, **head)
                save(file_name, page.encode(errors="replace"))
            elif not options.compare:
                save(file_name, caption.picture_bytes(kind, style))
            elif kind == "png":
                save(file_name, png(comparison_sheet(image, shown, style)))
            else:  # pdf or svg
                save(file_name, vector_sheet(image, shown, style).to_bytes(kind))
    except CaptionerError as error:
        return saved, str(error)
    return saved, None


def settings_digest(model_folders: Iterable[Path], options: Mapping[str, Any]) -> str:
    """Return a digest of models (by their manifests) and of options with plain values."""
    digest = hashlib.sha256(repr(sorted(options.items())).encode(errors="surrogatepass"))
    for folder in model_folders:
        with contextlib.suppress(OSError):  # loading the model will say so
            digest.update((folder / MANIFEST).read_bytes())
    return digest.hexdigest()[:16]


def _place(photo: Path | str) -> str:
    """Return what the journal calls a photo: its absolute path, or its address."""
    return photo if isinstance(photo, str) else os.path.abspath(photo)


def _identity(image: Path | str) -> dict[str, int | None]:
    """Return the size and time of change of a photo's file, by which a changed file is noticed."""
    try:
        status = os.stat(image)
    except (OSError, ValueError):  # ValueError: a zero byte in an address of a page
        return {"bytes": None, "modified_ns": None}
    return {"bytes": status.st_size, "modified_ns": status.st_mtime_ns}
