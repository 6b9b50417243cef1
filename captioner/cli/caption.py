"""`caption.py`, `captioner caption`: write captions for photos and draw their attention."""

from __future__ import annotations

import argparse
import json
import os
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from PIL import Image

from captioner.cli import load_captioner, parsing, run_command, show
from captioner.cli.output import (
    add_output_options,
    attention_options,
    caption_content,
    caption_note,
    check_attention_options,
    check_output_options,
    files_note,
    is_withheld,
    of_head,
)
from captioner.cli.photos import STANDARD_INPUT, Skipped, is_page, open_photo, photos_in, refusal_of
from captioner.errors import CaptionerError
from captioner.log import logger, printable, progress_bar

if TYPE_CHECKING:
    from captioner.captioner import Captioner
    from captioner.cli.alt_text import TextWriter
    from captioner.cli.output_folder import OutputFolder
    from captioner.visualization import Caption

_Photo: TypeAlias = Path | str  # a file; an address or standard input
_Models: TypeAlias = "list[tuple[str, Captioner]]"  # by name
_Found: TypeAlias = "list[tuple[str, list[Caption]]]"  # captions by the models' names, best first

_SEARCH = "beam_size max_words min_words length_penalty num_captions temperature top_p seed".split()
# Options that change a caption or a picture, so that --resume needs the same.
_SETTINGS = (
    "beam_size precision save words cells style colour_map opacity threshold layer head at_test "
    "paths max_words length_penalty".split()
)
# Options that came later. They count where they are given, so that older folders can be resumed.
_LATER_SETTINGS = "num_captions min_words sample temperature top_p seed".split()
# Options that need one of these kinds of --write.
_OF_WRITE = {
    "site_root": ("html",),
    "prefix": ("txt",),
    "suffix": ("txt",),
    "xmp_merge": ("xmp",),
    "overwrite": ("txt", "xmp"),
}


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    check_output_options(parser, arguments)
    _check(parser, arguments)
    return run_command(lambda: _CaptionRun(arguments).run())


def _parser() -> argparse.ArgumentParser:
    parser = parsing.CommandParser(
        prog="captioner caption",
        description="Write captions for photos and draw the attention to each word. "
        "Exit code: 0 all done, 1 some photos failed, 2 nothing could be done.",
    )
    parser.add_argument(
        "photos",
        nargs="+",
        metavar="PHOTO",
        help="a photo, a folder of them, - for one on standard input, with --allow-urls an "
        "address, or with --write html a page",
    )
    parsing.add_model_options(parser).add_argument(
        "--compare",
        nargs="+",
        metavar="MODEL",
        help="several models, bundled names or folders: with --output, one sheet a photo with a "
        "row a model",
    )
    add_output_options(parser)
    parsing.add_search_options(parser, min_words=True)
    parser.add_argument(
        "--min-confidence",
        type=parsing.number_from(0, 1),
        metavar="X",
        help="give no caption where the model's confidence is below X, from 0 to 1; needs a model "
        "with a calibrator",
    )
    _add_several_captions(parser.add_argument_group("several captions").add_argument)
    add = parser.add_argument_group("folders and files").add_argument
    add("-r", "--recursive", action="store_true", help="also go into the folders inside folders")
    add(
        "--resume",
        action="store_true",
        help="skip photos that captions.jsonl in --output lists as done with the same settings",
    )
    add("--allow-urls", action="store_true", help="fetch photos whose address is given (https://…)")
    _add_texts(parser.add_argument_group("alternative texts and caption files").add_argument)
    return parser


def _add_several_captions(add: Callable[..., object]) -> None:
    add(
        "--num-captions",
        type=parsing.whole_number_from(1, parsing.MAX_BEAM_SIZE),
        metavar="N",
        help="captions a photo, best first; files and pictures are of the first",
    )
    add(
        "--sample",
        action="store_true",
        help="draw captions at random from the model's probabilities, instead of a search",
    )
    add(
        "--temperature",
        type=parsing.number_from(0.01, 100),
        metavar="T",
        help="with --sample: below 1 likely words become likelier (default: 1)",
    )
    add(
        "--top-p",
        type=parsing.number_from(0.001, 1),
        metavar="P",
        help="with --sample: only from the likeliest words whose probabilities sum to P",
    )
    add(
        "--seed",
        type=parsing.whole_number_from(0, 2**63 - 1),
        metavar="N",
        help="with --sample: draw the same captions again",
    )


def _add_texts(add: Callable[..., object]) -> None:
    add(
        "--write",
        type=parsing.names_of(("xmp", "txt", "csv", "html")),
        default=(),
        metavar="KINDS",
        help="what to write, separated by commas: xmp (a sidecar PHOTO.xmp next to each photo), "
        "txt (the caption as PHOTO's name with .txt, as training programs read it), csv "
        "(captions.csv in --output), html (a copy of each page of HTML or Markdown given, with "
        "the missing texts of its images)",
    )
    there = "replace texts that are there: --write txt and xmp"
    add("--overwrite", action="store_true", help=there)
    add("--prefix", default="", metavar="TEXT", help="begins each --write txt")
    add("--suffix", default="", metavar="TEXT", help="ends each --write txt")
    add(
        "--xmp-merge",
        action="store_true",
        help="add the texts to sidecars that another program wrote, and leave all else in them",
    )
    add(
        "--xmp-name",
        choices=("append", "replace"),
        default="append",
        help="append: dog.jpg.xmp, for digiKam and darktable; replace: dog.xmp, for Lightroom "
        "(default: append)",
    )
    add(
        "--site-root",
        type=Path,
        metavar="DIR",
        help="where addresses in pages that begin with / begin (default: the page's folder, or "
        "one above it, whichever has the file)",
    )


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuse options that make no sense together."""

    def refuse(name: str, problem: str) -> None:
        parser.error(f"argument --{name.replace('_', '-')}: {problem}")

    write, compare = arguments.write, arguments.compare
    if "csv" in write and arguments.output is None:
        refuse("write", "csv needs --output, the folder for the table")
    if write and compare:
        refuse("write", "takes the captions of one model, so not with --compare")
    if "html" in write and not any(map(is_page, arguments.photos)):
        refuse("write", "html needs a page among the photos, such as index.html")
    for name, kinds in _OF_WRITE.items():
        if getattr(arguments, name) and not set(kinds) & set(write):
            refuse(name, f"needs --write {' or '.join(kinds)}")
    if arguments.resume and arguments.output is None:
        refuse("resume", "needs --output, the folder that an earlier run wrote to")
    if arguments.sample:
        names, problem = ("beam_size", "length_penalty", "min_confidence"), "is not for --sample"
    else:
        names, problem = ("temperature", "top_p", "seed"), "needs --sample"
    for name in parsing.given(arguments, *names):
        refuse(name, problem)
    count, beams = arguments.num_captions or 1, arguments.beam_size
    if count > 1 and compare:
        refuse("num_captions", "shows one model, so not with --compare")
    if not arguments.sample and beams is not None and count > beams:
        refuse("num_captions", f"is at most --beam-size, which is {beams}")


class _CaptionRun:
    """One run of the command: collects photos, captions them in batches, writes the output."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.model_names = arguments.compare or [parsing.chosen_model(arguments)]
        self.failures = 0
        self.done = 0
        self.texts: TextWriter | None = None
        self.output: OutputFolder | None = None
        if arguments.write:
            from captioner.cli.alt_text import TextWriter

            self.texts = TextWriter(arguments, partial(self._failed, None))

    def run(self) -> int:
        """Caption the photos, write all output, and return the exit code."""
        arguments = self.arguments
        photos = self._collect()
        if not photos and not (self.texts and self.texts.pages):
            return 2
        records = self._open_output(photos)
        todo = [photo for photo in photos if photo not in records]
        models = self._load_models() if todo else []
        if self.output:  # not before: a call that is refused leaves no folder behind
            self.output.begin()
        for photo, record in records.items():
            self.done += 1
            if self.texts:
                self.texts.add(photo, record["caption"], record.get("confidence"))
        if todo:
            self._caption(todo, models)
        for file in self.texts.finish(photos) if self.texts else ():
            if not arguments.json:
                show(printable(file))
            self.done += 1
        if self.failures:
            return 1 if self.done else 2
        return 0

    def _collect(self) -> list[_Photo]:
        """Return the photos to caption, in the order given; say what is skipped."""
        arguments = self.arguments
        skipped = Skipped()
        outside = () if arguments.output is None else (os.path.abspath(arguments.output),)
        pages = "html" in arguments.write
        photos: list[_Photo] = []
        for name in arguments.photos:
            refusal = refusal_of(name, allow_urls=arguments.allow_urls, allow_pages=pages)
            if refusal:
                self._failed(name, refusal)
            elif name == STANDARD_INPUT or ("://" in name and not os.path.exists(name)):
                photos.append(name)
            elif os.path.isdir(name):  # Path.is_dir raises for a name that no file can have
                failures, before = self.failures, len(photos)
                photos += photos_in(
                    Path(name),
                    skipped,
                    partial(self._failed, None),
                    recursive=arguments.recursive,
                    leave_out=outside,
                )
                if len(photos) == before and self.failures == failures:
                    self._failed(name, "the folder holds no photos")
            elif self.texts and is_page(name):
                photos += self.texts.images_of(Path(name), photos)
            else:
                photos.append(Path(name))
        if skipped.sentence():
            logger.info(skipped.sentence())
        return photos

    def _load_models(self) -> _Models:
        """Load the models by name, and refuse options that they cannot follow."""
        arguments = self.arguments
        models = [(str(name), load_captioner(name, arguments)) for name in self.model_names]
        check_attention_options(arguments, [captioner for _, captioner in models])
        for name, captioner in models:
            if arguments.min_confidence is not None and captioner.calibrator is None:
                raise CaptionerError(
                    f"--min-confidence: the model {name} has no calibrator, so its captions have "
                    "no confidence; make one with captioner calibrate"
                )
        return models

    def _open_output(self, photos: list[_Photo]) -> dict[_Photo, dict[str, Any]]:
        """Open the folder of `--output`; return the records of the photos that are done."""
        arguments = self.arguments
        if arguments.output is None:
            return {}
        from captioner.checkpoint import model_folder
        from captioner.cli.output_folder import OutputFolder, settings_digest

        folders = [model_folder(name) for name in self.model_names]
        given = vars(arguments)
        options = {key: given[key] for key in _SETTINGS}
        options |= {key: given[key] for key in _LATER_SETTINGS if given[key]}
        # Only where they matter, so that other folders that earlier versions began go on.
        if arguments.compare:
            options["compare"] = True
        if arguments.min_confidence is not None and arguments.save:
            options["min_confidence"] = arguments.min_confidence  # decides what is drawn
        settings = settings_digest(folders, options)
        self.output = OutputFolder(arguments, photos, settings, self._failed)
        records: dict[_Photo, dict[str, Any]] = {}
        for photo in photos if arguments.resume else ():
            if isinstance(photo, Path) and (record := self.output.done(photo)):
                records[photo] = record
        if records:
            logger.info(f"{len(records)} of {len(photos)} photos were done before")
        return records

    def _caption(self, photos: list[_Photo], models: _Models) -> None:
        """Open the photos, caption them in batches by every model, and write the output."""
        from captioner.data.inputs import opened
        from captioner.runtime.parallel import parallel_map

        arguments = self.arguments
        device = models[0][1].device
        at_random = arguments.sample or any(
            captioner.samples_cells(arguments.at_test, arguments.paths) for _, captioner in models
        )
        drawing = self.output.processes(len(photos)) if self.output else nullcontext(0)
        with (
            progress_bar(total=len(photos), unit="photo", disable=len(photos) == 1) as bar,
            drawing as ahead,
        ):
            waiting: deque[tuple[_Photo, _Found, Callable[[], list[Path]]]] = deque()

            def unreadable(photo: _Photo, reason: object) -> None:
                self._failed(photo, reason)
                bar.update()

            def captioned(
                batch: list[tuple[_Photo, Image.Image]],
            ) -> list[tuple[_Photo, Image.Image, _Found]]:
                images = [image for _, image in batch]
                by_model = [(name, self._captions_by(each, images)) for name, each in models]
                return [
                    (photo, image, [(name, captions[place]) for name, captions in by_model])
                    for place, (photo, image) in enumerate(batch)
                ]

            def write_first() -> None:
                self._write(*waiting.popleft())
                bar.update()

            batches = opened(((p, p) for p in photos), unreadable, device, read=open_photo)
            for batch in (
                map(captioned, batches) if at_random else parallel_map(captioned, batches, device)
            ):
                for photo, image, found in batch:
                    shown = self._not_withheld(found)
                    drawn: Callable[[], list[Path]] = list
                    if self.output and shown:
                        drawn = self.output.draw(photo, image, shown)
                    waiting.append((photo, found, drawn))
                    while len(waiting) > ahead:
                        write_first()
            while waiting:
                write_first()

    def _captions_by(self, captioner: Captioner, images: list[Image.Image]) -> list[list[Caption]]:
        """Return a model's captions of each image, best first, or as they were drawn."""
        arguments = self.arguments
        options = parsing.given(arguments, *_SEARCH)
        if options.get("num_captions", 1) > captioner.config.decoding.beam_size:
            options.setdefault("beam_size", options["num_captions"])
        options |= attention_options(arguments, captioner)
        return captioner.captions(images, captioner.options(sample=arguments.sample, **options))

    def _not_withheld(self, found: _Found) -> list[tuple[str, Caption]]:
        """Return the best caption of each model, if its confidence suffices."""
        least = self.arguments.min_confidence
        best = [(name, captions[0]) for name, captions in found]
        return [each for each in best if not is_withheld(each[1].confidence, least)]

    def _write(self, photo: _Photo, found: _Found, drawn: Callable[[], list[Path]]) -> None:
        """Print a photo's captions, by one model or several, and record them."""
        arguments = self.arguments
        failures = self.failures
        pictures = drawn()
        caption = found[0][1][0]
        files = self.texts.add(photo, caption.text, caption.confidence) if self.texts else []
        if arguments.json:
            self._show_json(photo, found, pictures)
        else:
            self._show_text(photo, found, [*pictures, *files])
        self.done += 1
        if not self.output or self.failures > failures or not isinstance(photo, Path):
            return
        content: dict[str, Any] = {"caption": caption.text, "confidence": caption.confidence}
        if arguments.compare:
            shown = self._not_withheld(found)
            content = {"captions": {name: each.text for name, each in shown}}
        self.output.add(photo, content, pictures)

    def _show_text(self, photo: _Photo, found: _Found, files: list[Path]) -> None:
        """Print a photo's captions and files; further captions or models have a line each."""
        note = partial(caption_note, min_confidence=self.arguments.min_confidence)
        first, *others = found[0][1]
        head = f"{printable(photo)}: {note(first)}{files_note(files)}"
        lines = [f"{place}. {note(each)}" for place, each in enumerate(others, start=2)]
        if len(found) > 1:
            head = f"{printable(photo)}{files_note(files)}"
            lines = [f"{printable(name)}: {note(best)}" for name, (best, *_) in found]
        show("\n  ".join([head, *lines]))

    def _show_json(self, photo: _Photo, found: _Found, pictures: list[Path]) -> None:
        """Print one JSON object a model, in ASCII, so that it is JSON in every locale."""
        arguments = self.arguments
        content = partial(caption_content, min_confidence=arguments.min_confidence)
        for name, captions in found:
            ((_, best),) = of_head([(name, captions[0])], arguments)
            line: dict[str, Any] = {"model": name} if arguments.compare else {}
            line |= {"image": str(photo), **content(best)}
            if arguments.num_captions is not None:
                line["captions"] = [content(each, with_total=True) for each in captions]
            if pictures:
                line["pictures"] = [str(picture) for picture in pictures]
            show(json.dumps(line))

    def _failed(self, photo: _Photo | None, reason: object) -> None:
        self.failures += 1
        logger.warning(str(reason) if photo is None else f"{photo}: {reason}")
