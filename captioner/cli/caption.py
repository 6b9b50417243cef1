"""`caption.py`, `captioner caption`: captions for photos, pictures of where the model looked."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from PIL import Image
from tqdm import tqdm

from captioner.cli import (
    add_model_options,
    chosen_model,
    load_captioner,
    run_command,
    whole_number,
)
from captioner.cli.output import (
    CaptionWriter,
    add_output_options,
    attention_options,
    check_attention_options,
    check_output_options,
    samples_cells,
)
from captioner.cli.photos import opened
from captioner.errors import CaptionerError

if TYPE_CHECKING:
    from captioner.captioner import Captioner
    from captioner.types import Caption

_Batch: TypeAlias = "list[tuple[Path, Image.Image]]"


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    check_output_options(parser, arguments)
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
    add_output_options(parser)
    parser.add_argument("--max-words", type=whole_number, help="longest caption")
    parser.add_argument(
        "--length-penalty", type=float, help="rank captions by log-probability / length ** this"
    )
    return parser


def _run(arguments: argparse.Namespace) -> int:
    from captioner.runtime.parallel import parallel_map

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
        (str(name), load_captioner(name, arguments))
        for name in arguments.compare or [chosen_model(arguments)]
    ]
    check_attention_options(arguments, [captioner for _, captioner in models])
    writer = CaptionWriter(arguments, paths, failed)
    with tqdm(total=len(paths), unit="photo", disable=None if len(paths) > 1 else True) as bar:

        def unreadable(path: Path, reason: object) -> None:
            failed(path, reason)
            bar.update()

        def captioned(batch: _Batch) -> tuple[_Batch, list[list[Caption]]]:
            images = [image for _, image in batch]
            return batch, [_captions(captioner, images, arguments) for _, captioner in models]

        results: Iterator[tuple[_Batch, list[list[Caption]]]]
        device = models[0][1].device
        batches = opened(((path, path) for path in paths), unreadable, device)
        at_random = (arguments.at_test, arguments.paths or 0)
        if any(samples_cells(captioner, *at_random) for _, captioner in models):
            results = map(captioned, batches)
        else:
            results = parallel_map(captioned, batches, device)
        for batch, by_model in results:
            for place, (path, image) in enumerate(batch):
                captions = [captions[place] for captions in by_model]
                if arguments.compare:
                    names = [name for name, _ in models]
                    writer.compare(path, image, list(zip(names, captions, strict=True)))
                else:
                    writer.write(path, image, captions[0], model=models[0][0])
                bar.update()
    writer.finish()
    return 1 if failures else 0


def _captions(
    captioner: Captioner, images: list[Image.Image], arguments: argparse.Namespace
) -> list[Caption]:
    return captioner.caption_batch(
        images,
        beam_size=arguments.beam_size,
        max_words=arguments.max_words,
        length_penalty=arguments.length_penalty,
        **attention_options(arguments, captioner),
    )


def _photos_of(path: Path) -> Iterator[Path]:
    """The path itself, or the photos that lie in it, without pictures drawn by an earlier run."""
    if not os.path.isdir(path):  # Path.is_dir raises for a name that no file can have
        yield path
        return
    from captioner.data.transforms import IMAGE_SUFFIXES
    from captioner.visualization import is_picture_of

    try:
        members = sorted(path.iterdir())
    except OSError as error:
        raise CaptionerError(f"{path}: cannot be listed ({error.strerror})") from None
    photos = [
        member
        for member in members
        if member.suffix.lower() in IMAGE_SUFFIXES
        and not member.name.startswith(".")
        and member.is_file()
    ]
    names = {name for photo in photos for name in (photo.name, photo.stem)}
    yield from (photo for photo in photos if not is_picture_of(photo.name, names))
