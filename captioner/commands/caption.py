"""`caption.py`, `captioner caption`: captions for photos, pictures of where the model looked."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image
from tqdm import tqdm

from captioner.commands import add_model_options, run_command, whole_number
from captioner.data.transforms import PHOTO_SUFFIXES, open_photo
from captioner.errors import CaptionerError, PhotoError
from captioner.grid import Caption
from captioner.pipeline import Captioner

BATCH_PHOTOS = 8  # more do not caption faster on a CPU
BATCH_PIXELS = 60_000_000  # so that a batch of huge photos does not fill the memory
_OWN_PICTURE = re.compile(r"\.(attention|\d{2}-.*)\.png$")  # what an earlier run wrote


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    return run_command(lambda: _run(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="captioner caption",
        description="Write captions for photos and draw where the model looked for each word. "
        "Exit code: 0 all done, 1 some photos failed, 2 nothing could be done.",
    )
    parser.add_argument("photos", nargs="+", metavar="PHOTO", help="a photo, or a folder of them")
    add_model_options(parser)
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
    captioner = Captioner.from_pretrained(
        arguments.checkpoint or arguments.model, device=arguments.device
    )
    writer = _Writer(arguments, paths)
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
                captions = captioner.caption_batch(
                    batch.images,
                    beam_size=arguments.beam_size,
                    max_words=arguments.max_words,
                    length_penalty=arguments.length_penalty,
                )
                for done, image, caption in zip(batch.paths, batch.images, captions, strict=True):
                    try:
                        writer.write(done, image, caption)
                    except CaptionerError as error:
                        failed(done, error)
                    bar.update()
                batch = _Batch()
    return 1 if failures else 0


def _photos_of(path: Path) -> Iterator[Path]:
    """The path itself, or the photos that lie in it, without pictures drawn by an earlier run."""
    if not path.is_dir():
        yield path
        return
    try:
        members = sorted(path.iterdir())
    except OSError as error:
        raise CaptionerError(f"{path}: cannot be listed ({error.strerror})") from None
    for member in members:
        if (
            member.suffix.lower() in PHOTO_SUFFIXES
            and not member.name.startswith(".")
            and not _OWN_PICTURE.search(member.name)
            and member.is_file()
        ):
            yield member


class _Writer:
    """Prints captions and saves pictures as the options say."""

    def __init__(self, arguments: argparse.Namespace, paths: list[Path]) -> None:
        self.arguments = arguments
        self.names: dict[Path, str] = {}
        if arguments.output:
            from captioner.rendering import output_names

            self.names = dict(zip(paths, output_names(paths), strict=True))

    def write(self, path: Path, image: Image.Image, caption: Caption) -> None:
        """Print the caption even when its pictures cannot be saved."""
        pictures: list[Path] = []
        problem: CaptionerError | None = None
        try:
            for picture in self._save(path, image, caption):
                pictures.append(picture)
        except CaptionerError as error:
            problem = error
        if self.arguments.json:
            line = {
                "image": str(path),
                "caption": caption.text,
                "words": caption.words,
                "log_probs": [round(float(value), 6) for value in caption.log_probs],
                "beta": None
                if caption.beta is None
                else [round(float(value), 6) for value in caption.beta],
            }
            if pictures:
                line["pictures"] = [str(picture) for picture in pictures]
            text = json.dumps(line, ensure_ascii=False)
        else:
            text = "\n  ".join([f"{path}: {caption.text}", *map(str, pictures)])
        tqdm.write(text, file=sys.stdout)
        sys.stdout.flush()
        if problem:
            raise problem

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

        options = {
            "smooth": not self.arguments.cells,
            "colour_map": self.arguments.colour_map,
        }
        name = self.names[path]
        sheet = folder / sheet_name(name)
        save_png(attention_sheet(image, caption, **options), sheet)
        yield sheet
        if self.arguments.words:
            pictures = word_images(image, caption, **options)
            for picture, file in zip(pictures, word_names(name, caption.words), strict=True):
                save_png(picture, folder / file)
                yield folder / file
