"""The command that captions photos and draws the attention to each word."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from glob import glob
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from PIL import Image

from captioner import cli
from captioner.cli import parsing
from captioner.errors import CaptionerError, ImageError
from captioner.log import logger, printable, progress_bar

if TYPE_CHECKING:
    from concurrent.futures import Future

    from captioner.captioner import Captioner
    from captioner.cli.alt_text import TextWriter
    from captioner.cli.output_folder import Drawn, OutputFolder
    from captioner.generation import SearchOptions
    from captioner.visualization import Caption

_Photo: TypeAlias = Path | str  # a file; an address or standard input
_Models: TypeAlias = "list[tuple[str, Captioner, SearchOptions]]"  # with their names
_Found: TypeAlias = "list[tuple[str, list[Caption]]]"  # captions by the models' names, best first
_Captioned: TypeAlias = "tuple[_Photo, Image.Image, _Found]"

_SEARCH = "beam_size max_words min_words length_penalty num_captions temperature top_p seed".split()
# Options that change a caption or a picture, so that --resume needs the same.
_SETTINGS = (
    "beam_size precision save words cells style colour_map opacity threshold layer head at_test "
    "paths max_words length_penalty".split()
)
# Options that came later. They count where they are given, so that older folders can be resumed.
_LATER_SETTINGS = "num_captions min_words sample temperature top_p seed".split()
_OF_SEARCH = ("beam_size", "length_penalty", "min_confidence")  # and not of --sample
# Options that need one of these kinds of --write.
_OF_WRITE = {
    "site_root": ("html",),
    "prefix": ("txt",),
    "suffix": ("txt",),
    "xmp_merge": ("xmp",),
    "overwrite": ("txt", "xmp", "csv", "html"),
}
_DOWNLOAD_TIMEOUT_S = 60.0
_LISTS = tuple(".txt .csv .tsv .jsonl .json .parquet .tar .tgz .zip .gz .7z .rar".split())
_PAGES = (".html", ".htm", ".xhtml", ".md", ".markdown")


@cli.command
def caption(parser: parsing.CommandParser) -> int:
    """Write captions for photos and draw the attention to each word.

    Exit code: 0 all done, 1 some photos failed, 2 nothing could be done.
    """
    help_ = "a photo, a folder, - (standard input), an address (--allow-urls), a page "
    help_ += "(--write html)"
    parser.add_argument("photos", nargs="+", metavar="PHOTO", help=help_)
    help_ = "after the photos, several models: with --output, one sheet a photo with a row a model"
    models = parsing.add_model_options(parser)
    models.add_argument("--compare", nargs="+", metavar="MODEL", help=help_)
    parsing.add_output_options(parser)
    parsing.add_search_options(parser, min_words=True)
    share, count = parsing.number_from(0, 1), parsing.number_from(1, parsing.MAX_BEAM_SIZE, int)
    help_ = "give no caption where the model's confidence is below X, from 0 to 1"
    parser.add_argument("--min-confidence", type=share, metavar="X", help=help_)
    add = parser.add_argument_group("several captions").add_argument
    help_ = "captions a photo, best first; files and pictures are of the first"
    add("--num-captions", type=count, metavar="N", help=help_)
    help_ = "draw captions at random from the model's probabilities, instead of a search"
    add("--sample", action="store_true", help=help_)
    help_ = "with --sample: below 1 likely words become likelier (default: 1)"
    add("--temperature", type=parsing.number_from(0.01, 100), metavar="T", help=help_)
    help_ = "with --sample: only from the likeliest words whose probabilities sum to P"
    add("--top-p", type=parsing.number_from(0.001, 1), metavar="P", help=help_)
    help_ = "with --sample: draw the same captions again"
    add("--seed", type=parsing.number_from(0, 2**63 - 1, int), metavar="N", help=help_)
    add = parser.add_argument_group("folders and files").add_argument
    add("-r", "--recursive", action="store_true", help="also go into the folders inside folders")
    help_ = "skip photos that captions.jsonl in --output lists as done with the same settings"
    add("--resume", action="store_true", help=help_)
    add("--allow-urls", action="store_true", help="fetch photos whose address is given (https://…)")
    add = parser.add_argument_group("alternative texts and caption files").add_argument
    help_ = "separated by commas: xmp (a sidecar), txt (the caption, as programs that train image "
    help_ += "models read it), csv (captions.csv in --output), html (pages with the missing texts)"
    kinds = parsing.names_of(("xmp", "txt", "csv", "html"))
    add("--write", type=kinds, default=(), metavar="KINDS", help=help_)
    add("--overwrite", action="store_true", help="replace texts and copies of pages that are there")
    add("--prefix", default="", metavar="TEXT", help="begins each --write txt")
    add("--suffix", default="", metavar="TEXT", help="ends each --write txt")
    help_ = "add the texts to sidecars that another program wrote, and leave all else in them"
    add("--xmp-merge", action="store_true", help=help_)
    help_ = "append: dog.jpg.xmp, for digiKam (default); replace: dog.xmp, for Lightroom"
    add("--xmp-name", choices=("append", "replace"), default="append", help=help_)
    help_ = "where addresses like /img/a.jpg begin (default: the page's folder or one above it)"
    add("--site-root", type=Path, metavar="DIR", help=help_)
    arguments = parser.parse(intermixed=True)
    arguments.photos = list(chain.from_iterable(map(_matching, arguments.photos)))
    parsing.check_output_options(parser, arguments)
    _check(parser, arguments)
    return _CaptionRun(arguments).run()


def _matching(name: str) -> list[str]:
    """Return the files of a pattern, which shells of Windows leave to us; any other name alone."""
    return [name] if os.path.lexists(name) else sorted(glob(name, recursive=True)) or [name]


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    options = vars(arguments).items()
    chosen = {name for name, value in options if value is not None and value is not False}
    write, beams, count = arguments.write, arguments.beam_size, arguments.num_captions or 1
    is_sampled, is_compared = "sample" in chosen, "compare" in chosen
    too_many = beams and count > beams and not is_sampled
    page = any(map(is_page, arguments.photos))
    rules = [
        ("write", write and is_compared, "takes the captions of one model, so not with --compare"),
        ("num_captions", count > 1 and is_compared, "shows one model, so not with --compare"),
        ("num_captions", too_many, f"is at most --beam-size, which is {beams}"),
        ("write", "csv" in write and "output" not in chosen, "csv needs --output, for the table"),
        ("write", "html" in write and not page, f"html needs pages ({', '.join(_PAGES)})"),
        ("resume", "output" not in chosen, "needs --output, the folder of an earlier run"),
        *(
            (name, not set(kinds) & set(write), f"needs --write {' or '.join(kinds)}")
            for name, kinds in _OF_WRITE.items()
            if getattr(arguments, name)
        ),
        *((name, not is_sampled, "needs --sample") for name in ("temperature", "top_p", "seed")),
        *((name, is_sampled, "is not for --sample") for name in _OF_SEARCH),
    ]
    for name, is_wrong, problem in rules:
        if name in chosen and is_wrong:
            parser.error(f"argument --{name.replace('_', '-')}: {problem}")


class _CaptionRun:
    """One run of the command: collects photos, captions them in batches, writes the output."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.model_names = arguments.compare or [parsing.chosen_model(arguments)]
        self.failures = self.done = 0
        self.texts: TextWriter | None = None
        self.output: OutputFolder | None = None
        if arguments.write:
            from captioner.cli.alt_text import TextWriter

            self.texts = TextWriter(arguments, self._failed)

    def run(self) -> int:
        """Caption the photos, write all output, and return the exit code."""
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
        try:
            if todo:
                self._caption(todo, models)
        except KeyboardInterrupt:
            if self.output:
                logger.info("the same command with --resume does the rest")
            raise
        for file in self.texts.finish(photos) if self.texts else ():
            if not self.arguments.json:
                cli.show(printable(file))
            self.done += 1
        return (1 if self.done else 2) if self.failures else 0

    def _collect(self) -> list[_Photo]:
        """Return the photos to caption, each once, in the order given; say what is skipped."""
        arguments = self.arguments
        skipped: Counter[str] = Counter()
        photos: list[_Photo] = []
        for name in arguments.photos:
            if name == parsing.STANDARD_INPUT or (is_address(name) and arguments.allow_urls):
                photos.append(name)
            elif is_address(name):
                self._failed(f"{name}: is an address; --allow-urls fetches it")
            elif os.path.isdir(name):  # Path.is_dir raises for a name that no file can have
                from captioner.data.image_finder import photos_in

                failures = self.failures
                options = {"recursive": arguments.recursive, "leave_out": arguments.output}
                found = list(photos_in(Path(name), skipped, self._failed, **options))
                if not found and self.failures == failures:
                    self._failed(f"{name}: the folder holds no photos")
                photos += found
            elif Path(name).suffix.lower() in _LISTS and os.path.isfile(name):
                self._failed(
                    f"{name}: is a list or an archive; captioner batch {name} --output DIR reads "
                    "lists and tar files, other archives have to be unpacked"
                )
            elif not is_page(name):
                photos.append(Path(name))
            elif self.texts and "html" in arguments.write:
                photos += self.texts.images_of(Path(name))
            else:
                self._failed(f"{name}: is a page; --write html fills in the texts of its images")
        if skipped.total():
            from captioner.data.image_finder import skipped_sentence

            logger.info(skipped_sentence(skipped))
        return list(dict.fromkeys(photos))

    def _load_models(self) -> _Models:
        """Load the models by name, and refuse options that they cannot follow."""
        arguments = self.arguments
        loaded = [cli.load_captioner(name, arguments) for name in self.model_names]
        attention = cli.attention_options(arguments, loaded)
        models: _Models = []
        for name, captioner, of_attention in zip(self.model_names, loaded, attention, strict=True):
            if arguments.min_confidence is not None and captioner.calibrator is None:
                raise CaptionerError(
                    f"--min-confidence: the model {name} has no calibrator, so its captions have "
                    "no confidence; make one with captioner calibrate"
                )
            options = {key: getattr(arguments, key) for key in (*_SEARCH, "sample")}
            if (arguments.num_captions or 1) > captioner.config.decoding.beam_size:
                options["beam_size"] = options["beam_size"] or arguments.num_captions
            models.append((str(name), captioner, captioner.options(**options, **of_attention)))
        return models

    def _open_output(self, photos: list[_Photo]) -> dict[_Photo, dict[str, Any]]:
        """Open the folder of `--output`; return the records of the photos that are done."""
        arguments = self.arguments
        if arguments.output is None:
            return {}
        from captioner.checkpoint import model_folder
        from captioner.cli.output_folder import OutputFolder, settings_digest

        options = {key: getattr(arguments, key) for key in _SETTINGS}
        options |= {key: value for key in _LATER_SETTINGS if (value := getattr(arguments, key))}
        # Only where they matter, so that other folders that earlier versions began go on.
        if arguments.compare:
            options["compare"] = True
        if arguments.min_confidence is not None and arguments.save:
            options["min_confidence"] = arguments.min_confidence  # decides what is drawn
        settings = settings_digest(map(model_folder, self.model_names), options)
        self.output = OutputFolder(arguments, photos, settings)
        files = [photo for photo in photos if arguments.resume and isinstance(photo, Path)]
        records: dict[_Photo, dict[str, Any]]
        records = {file: record for file in files if (record := self.output.done(file))}
        if records:
            logger.info(f"{len(records)} of {len(photos)} photos were done before")
        return records

    def _caption(self, photos: list[_Photo], models: _Models) -> None:
        """Caption the photos and write the output of each, once its pictures are drawn."""
        least = self.arguments.min_confidence
        drawing = self.output.processes(len(photos)) if self.output else nullcontext(0)
        bar = progress_bar(total=len(photos), unit="photo", disable=len(photos) == 1)
        with bar, drawing as ahead:
            waiting: deque[Callable[[], None]] = deque()
            for photo, image, found in self._captioned(photos, models, bar.update):
                best = [(name, captions[0]) for name, captions in found]
                shown = [b for b in best if not cli.is_withheld(b[1].confidence, least)]
                drawn = self.output.draw(photo, image, shown) if self.output and shown else None
                waiting.append(partial(self._write, photo, found, drawn))
                while len(waiting) > ahead:
                    waiting.popleft()()
                    bar.update()
            for write in waiting:
                write()
                bar.update()

    def _captioned(
        self, photos: list[_Photo], models: _Models, failed: Callable[[], object]
    ) -> Iterator[_Captioned]:
        """Open the photos in batches and yield each with its captions by every model."""
        from captioner.data.images import opened
        from captioner.runtime.parallel import parallel_map

        arguments = self.arguments
        device = models[0][1].device

        def unreadable(photo: _Photo, reason: object) -> None:
            self._failed(f"{photo}: {reason}")
            failed()

        def caption(batch: list[tuple[_Photo, Image.Image]]) -> list[_Captioned]:
            images = [image for _, image in batch]
            by_model = [captioner.captions(images, search) for _, captioner, search in models]
            names = [name for name, *_ in models]
            found = [list(zip(names, each, strict=True)) for each in zip(*by_model, strict=True)]
            return [(*photo, each) for photo, each in zip(batch, found, strict=True)]

        batches = opened(((p, p) for p in photos), unreadable, device, read=open_photo)
        at_random = arguments.sample or any(
            captioner.samples_cells(search.at_test, search.paths) for _, captioner, search in models
        )
        in_order = map(caption, batches) if at_random else parallel_map(caption, batches, device)
        return chain.from_iterable(in_order)

    def _write(self, photo: _Photo, found: _Found, drawn: Future[Drawn] | None) -> None:
        """Print a photo's captions, by one model or several, and record them."""
        arguments, failures = self.arguments, self.failures
        pictures, problem = drawn.result() if drawn else ([], None)
        if problem:
            self._failed(f"{photo}: {problem}")
        caption, count = found[0][1][0], len(found[0][1])
        if count < (arguments.num_captions or 1):
            more = "a larger --beam-size or --max-words may find more"
            logger.info(f"{photo}: the search found {count} captions within the limits; {more}")
        files = self.texts.add(photo, caption.text, caption.confidence) if self.texts else []
        if arguments.json:
            self._show_json(photo, found, pictures)
        else:
            self._show_text(photo, found, [*pictures, *files])
        self.done += 1
        if self.output and self.failures == failures and photo != parsing.STANDARD_INPUT:
            content = {"caption": caption.text, "confidence": caption.confidence}
            self.output.add(photo, content, pictures)

    def _show_text(self, photo: _Photo, found: _Found, files: list[Path]) -> None:
        """Print a photo's captions and files; further captions or models have a line each."""
        note = partial(cli.caption_note, min_confidence=self.arguments.min_confidence)
        first, *others = found[0][1]
        head = f"{printable(photo)}: {note(first)}{cli.files_note(files)}"
        lines = [f"{place}. {note(each)}" for place, each in enumerate(others, start=2)]
        if len(found) > 1:
            head = f"{printable(photo)}{cli.files_note(files)}"
            lines = [f"{printable(name)}: {note(best)}" for name, (best, *_) in found]
        cli.show("\n  ".join([head, *lines]))

    def _show_json(self, photo: _Photo, found: _Found, pictures: list[Path]) -> None:
        """Print one JSON object a model, in ASCII, so that it is JSON in every locale."""
        arguments = self.arguments
        content = partial(cli.caption_content, min_confidence=arguments.min_confidence)
        for name, captions in found:
            best = captions[0].of_head(arguments.layer, arguments.head)
            line: dict[str, Any] = {"model": name} if arguments.compare else {}
            line |= {"image": str(photo), **content(best)}
            if arguments.num_captions is not None:
                line["captions"] = [content(each, with_total=True) for each in captions]
            if pictures:
                line["pictures"] = [str(picture) for picture in pictures]
            cli.show(json.dumps(line))

    def _failed(self, reason: object) -> None:
        self.failures += 1
        logger.warning(str(reason))


def open_photo(photo: Path | str) -> Image.Image:
    """Read the photo at a path or an address, or on standard input, which is `-`."""
    from captioner.data.images import open_image

    if isinstance(photo, Path):
        return open_image(photo)
    from captioner.storage import MAX_FILE_BYTES, fetch_image

    if photo == parsing.STANDARD_INPUT:
        content = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ImageError(f"is larger than {MAX_FILE_BYTES >> 20} MiB")
    else:  # the user chose the address, so it may be one of the user's own network
        content = fetch_image(photo, MAX_FILE_BYTES, _DOWNLOAD_TIMEOUT_S, allow_private=True)
    return open_image(content)


def is_address(name: str) -> bool:
    """Return whether an argument is an address by its name."""
    return "://" in name and not os.path.exists(name)


def is_page(name: str) -> bool:
    """Return whether an argument is a page of HTML or Markdown by its name."""
    return Path(name).suffix.lower() in _PAGES
