"""`caption.py`, `captioner caption`: captions for photos, pictures of where the model looked."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image
from tqdm import tqdm

from captioner.commands import add_model_options, chosen_model, run_command, show, whole_number
from captioner.errors import CaptionerError, PhotoError

if TYPE_CHECKING:
    import numpy as np

    from captioner.grid import Caption
    from captioner.pipeline import Captioner

BATCH_PHOTOS = 8  # more do not caption faster on a CPU
BATCH_PIXELS = 60_000_000  # so that a batch of huge photos does not fill the memory


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    for option in ("words", "paths"):
        if getattr(arguments, option) and arguments.output is None:
            parser.error(f"argument --{option}: needs --output, the folder to draw in")
    return run_command(lambda: _run(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="captioner caption",
        description="Write captions for photos and draw where the model looked for each word. "
        "Exit code: 0 all done, 1 some photos failed, 2 nothing could be done.",
    )
    parser.add_argument("photos", nargs="+", metavar="PHOTO", help="a photo, or a folder of them")
    chosen = add_model_options(parser)
    chosen.add_argument(
        "--compare",
        nargs="+",
        metavar="MODEL",
        help="several models, bundled names or folders: with --output, one sheet a photo with a "
        "row a model",
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="draw attention sheets here")
    parser.add_argument(
        "--words", action="store_true", help="with --output: also one picture a word"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a photo")
    parser.add_argument(
        "--cells", action="store_true", help="draw the grid's cells instead of a smooth map"
    )
    parser.add_argument(
        "--colour-map", choices=("cividis", "viridis"), default="cividis", help="colours of maps"
    )
    parser.add_argument("--layer", type=whole_number, help="maps of this layer (default: the last)")
    parser.add_argument(
        "--head", type=whole_number, help="maps of this head (default: the mean of all)"
    )
    parser.add_argument(
        "--at-test",
        choices=("argmax", "expectation", "sample"),
        help="how hard attention looks (default: the model's own)",
    )
    parser.add_argument(
        "--paths",
        type=whole_number,
        default=0,
        metavar="M",
        help="with hard attention and --output: draw M sampled ways of looking",
    )
    parser.add_argument("--max-words", type=whole_number, help="longest caption")
    parser.add_argument(
        "--length-penalty", type=float, help="rank captions by log-probability / length ** this"
    )
    return parser


@dataclass
class _Batch:
    paths: list[Path] = field(default_factory=list)
    images: list[Image.Image] = field(default_factory=list)

    def is_full(self) -> bool:
        pixels = sum(image.width * image.height for image in self.images)
        return len(self.images) >= BATCH_PHOTOS or pixels >= BATCH_PIXELS


def _run(arguments: argparse.Namespace) -> int:
    from captioner.data.transforms import open_photo
    from captioner.pipeline import Captioner

    failures = 0

    def failed(path: Path, reason: object) -> None:
        nonlocal failures
        failures += 1
        tqdm.write(f"{path}: {reason}", file=sys.stderr)

    paths = []
    for name in arguments.photos:
        found = list(_photos_of(Path(name)))
        if not found:
            failed(Path(name), "the folder holds no photos")
        paths += found
    models = [
        (str(name), Captioner.from_pretrained(name, device=arguments.device))
        for name in arguments.compare or [chosen_model(arguments)]
    ]
    _check_looking(arguments, [captioner for _, captioner in models])
    writer = _Writer(arguments, paths, failed)
    with tqdm(total=len(paths), unit="photo", disable=None if len(paths) > 1 else True) as bar:
        batch = _Batch()
        for index, path in enumerate(paths):
            try:
                batch.images.append(open_photo(path))
                batch.paths.append(path)
            except PhotoError as error:
                failed(path, error)
                bar.update()
            if batch.images and (batch.is_full() or index == len(paths) - 1):
                by_model = [_captions(captioner, batch, arguments) for _, captioner in models]
                for place, (done, image) in enumerate(zip(batch.paths, batch.images, strict=True)):
                    captions = [captions[place] for captions in by_model]
                    if arguments.compare:
                        names = [name for name, _ in models]
                        writer.compare(done, image, list(zip(names, captions, strict=True)))
                    else:
                        writer.write(done, image, captions[0])
                    bar.update()
                batch = _Batch()
    return 1 if failures else 0


def _check_looking(arguments: argparse.Namespace, models: list[Captioner]) -> None:
    """Refuse to look in a way that no model can; compared models without it do without."""
    asked = "--at-test" if arguments.at_test else "--paths" if arguments.paths else None
    if asked and not any(captioner.looks_hard for captioner in models):
        raise CaptionerError(f"{asked}: needs a model with hard attention, such as --model hard")


def _captions(captioner: Captioner, batch: _Batch, arguments: argparse.Namespace) -> list[Caption]:
    captions = captioner.caption_batch(
        batch.images,
        beam_size=arguments.beam_size,
        max_words=arguments.max_words,
        length_penalty=arguments.length_penalty,
        at_test=arguments.at_test if captioner.looks_hard else None,
        paths=arguments.paths if captioner.looks_hard else 0,
    )
    if arguments.layer is None and arguments.head is None:
        return captions
    return [caption.of_head(arguments.layer, arguments.head) for caption in captions]


def _photos_of(path: Path) -> Iterator[Path]:
    """The path itself, or the photos that lie in it, without pictures drawn by an earlier run."""
    if not os.path.isdir(path):  # Path.is_dir raises for a name that no file can have
        yield path
        return
    from captioner.data.transforms import PHOTO_SUFFIXES
    from captioner.rendering import is_picture_of

    try:
        members = sorted(path.iterdir())
    except OSError as error:
        raise CaptionerError(f"{path}: cannot be listed ({error.strerror})") from None
    photos = [
        member
        for member in members
        if member.suffix.lower() in PHOTO_SUFFIXES
        and not member.name.startswith(".")
        and member.is_file()
    ]
    names = {name for photo in photos for name in (photo.name, photo.stem)}
    yield from (photo for photo in photos if not is_picture_of(photo.name, names))


class _Writer:
    """Prints captions and saves pictures as the options say."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        paths: list[Path],
        failed: Callable[[Path, object], None],
    ) -> None:
        self.arguments, self.failed = arguments, failed
        self.names: dict[Path, str] = {}
        if arguments.output:
            from captioner.rendering import output_names

            self.names = dict(zip(paths, output_names(paths), strict=True))

    def write(self, path: Path, image: Image.Image, caption: Caption) -> None:
        """Print the caption even when its pictures cannot be saved, and then say why not."""
        pictures: list[Path] = []
        problem: CaptionerError | None = None
        try:
            for picture in self._save(path, image, caption):
                pictures.append(picture)
        except CaptionerError as error:
            problem = error
        if self.arguments.json:
            line = _json_line(path, caption)
            if pictures:
                line["pictures"] = [str(picture) for picture in pictures]
            text = json.dumps(line, ensure_ascii=False)
        else:
            text = "\n  ".join([f"{path}: {caption.text}", *map(str, pictures)])
        show(text)
        if problem:
            self.failed(path, problem)

    def compare(self, path: Path, image: Image.Image, captions: list[tuple[str, Caption]]) -> None:
        """Print a caption a model, and draw them on one sheet."""
        sheet: Path | None = None
        problem: CaptionerError | None = None
        if self.arguments.output:
            from captioner.rendering import comparison_name, comparison_sheet, save_png

            sheet = self.arguments.output / comparison_name(self.names[path])
            try:
                save_png(comparison_sheet(image, captions, **self._look()), sheet)
            except CaptionerError as error:
                sheet, problem = None, error
        if self.arguments.json:
            for name, caption in captions:
                line = {"model": name, **_json_line(path, caption)}
                if sheet:
                    line["pictures"] = [str(sheet)]
                show(json.dumps(line, ensure_ascii=False))
        else:
            lines = [f"{name}: {caption.text}" for name, caption in captions]
            show("\n  ".join([f"{path}", *lines, *([str(sheet)] if sheet else [])]))
        if problem:
            self.failed(path, problem)

    def _look(self) -> dict[str, Any]:
        return {"smooth": not self.arguments.cells, "colour_map": self.arguments.colour_map}

    def _save(self, path: Path, image: Image.Image, caption: Caption) -> Iterator[Path]:
        folder = self.arguments.output
        if folder is None:
            return
        from captioner.rendering import (
            attention_sheet,
            save_png,
            sheet_name,
            word_images,
            word_names,
        )

        options = self._look()
        name = self.names[path]
        sheet = folder / sheet_name(name)
        save_png(attention_sheet(image, caption, **options), sheet)
        yield sheet
        if self.arguments.words:
            pictures = word_images(image, caption, **options)
            for picture, file in zip(pictures, word_names(name, caption.words), strict=True):
                save_png(picture, folder / file)
                yield folder / file


def _json_line(path: Path, caption: Caption) -> dict[str, Any]:
    line: dict[str, Any] = {
        "image": str(path),
        "caption": caption.text,
        "words": caption.words,
        "log_probs": _rounded(caption.log_probs),
        "beta": None if caption.beta is None else _rounded(caption.beta),
    }
    if caption.cells is not None:
        line["cells"] = caption.cells.tolist()
    if caption.paths is not None:
        line["paths"] = caption.paths.tolist()
    return line


def _rounded(values: np.ndarray) -> list[float]:
    return [round(float(value), 6) for value in values]
