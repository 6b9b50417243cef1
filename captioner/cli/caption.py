"""`caption.py`, `captioner caption`: write captions for photos and draw their attention."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from PIL import Image

from captioner.cli import load_captioner, parsing, run_command, show
from captioner.cli.alt_text import (
    HTML_SUFFIXES,
    MAX_LENGTH,
    TABLE,
    Page,
    alt_text,
    check_table,
    remove_sidecar,
    save_sidecar,
    table,
)
from captioner.cli.journal import JOURNAL, Journal, settings_digest
from captioner.cli.output import (
    GALLERY,
    CaptionWriter,
    add_output_options,
    attention_options,
    check_attention_options,
    check_output_options,
    is_withheld,
)
from captioner.cli.photos import STANDARD_INPUT, Skipped, open_photo, photos_in
from captioner.errors import CaptionerError
from captioner.files import check_writable, save_bytes
from captioner.log import logger, printable, progress_bar

if TYPE_CHECKING:
    from captioner.captioner import Captioner
    from captioner.types import Caption

_Batch: TypeAlias = "list[tuple[Path, Image.Image]]"
_Models: TypeAlias = "list[tuple[str, Captioner]]"

# Options that change neither a caption nor a picture, so that --resume may be given others.
_NOT_SETTINGS = frozenset(
    "photos output model checkpoint compare device engine json quiet verbose resume recursive "
    "write in_place max_length min_confidence".split()
)


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
        help="a photo, a folder of them, - for one on standard input, or with --write html a page",
    )
    chosen = parsing.add_model_options(parser)
    chosen.add_argument(
        "--compare",
        nargs="+",
        metavar="MODEL",
        help="several models, bundled names or folders: with --output, one sheet a photo with a "
        "row a model",
    )
    add_output_options(parser)
    parsing.add_search_options(parser)
    parser.add_argument(
        "--min-confidence",
        type=parsing.number_from(0, 1),
        metavar="X",
        help="give no caption where the model's confidence is below X, from 0 to 1; needs a model "
        "with a calibrator",
    )
    files = parser.add_argument_group("folders and files")
    files.add_argument(
        "-r", "--recursive", action="store_true", help="also go into the folders inside folders"
    )
    files.add_argument(
        "--resume",
        action="store_true",
        help=f"skip photos that {JOURNAL} in --output lists as done with the same settings",
    )
    files.add_argument(
        "--write",
        type=parsing.names_of(("xmp", "csv", "html")),
        default=(),
        metavar="KINDS",
        help="write alternative texts, separated by commas: xmp (a sidecar PHOTO.xmp next to each "
        f"photo), csv ({TABLE} in --output), html (a copy of each page given, with the missing alt "
        "of its images filled in)",
    )
    files.add_argument(
        "--in-place", action="store_true", help="with --write html: change the page itself"
    )
    files.add_argument(
        "--max-length",
        type=parsing.whole_number_from(1, 10_000),
        default=MAX_LENGTH,
        metavar="N",
        help=f"with --write: cut texts to N characters, at a word (default: {MAX_LENGTH})",
    )
    return parser


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuse options that make no sense together."""
    if arguments.resume and arguments.output is None:
        parser.error("argument --resume: needs --output, the folder that an earlier run wrote to")
    if "csv" in arguments.write and arguments.output is None:
        parser.error("argument --write: csv needs --output, the folder for the table")
    if arguments.write and arguments.compare:
        parser.error("argument --write: takes the captions of one model, so not with --compare")
    if arguments.in_place and "html" not in arguments.write:
        parser.error("argument --in-place: needs --write html")
    pages = [name for name in arguments.photos if _is_page(name)]
    if pages and "html" not in arguments.write:
        parser.error(f"{pages[0]} is a page; to fill in its images' alt give --write html")
    if "html" in arguments.write and not pages:
        parser.error("argument --write: html needs a page among the photos, such as index.html")
    if arguments.photos.count("-") > 1:
        parser.error("- can be given once: standard input has one photo")


def _is_page(name: str) -> bool:
    return Path(name).suffix.lower() in HTML_SUFFIXES and not os.path.isdir(name)


class _CaptionRun:
    """One run of the command: collects photos, captions them in batches, writes the output."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.failures = 0
        self.done = 0
        self.pages: list[Page] = []
        # The image, its alternative text (empty where it is withheld) and its confidence.
        self.rows: dict[Path, tuple[str, str, float | None]] = {}
        self.journal: Journal | None = None

    def run(self) -> int:
        """Caption the photos, write all output, and return the exit code."""
        arguments = self.arguments
        if "csv" in arguments.write:
            check_table(arguments.output / TABLE)
        paths = self._collect()
        if not paths and not self.pages:
            return 2
        names, records = self._names_and_records(paths)
        todo = [path for path in paths if path not in records]
        models = self._load_models() if todo else []
        if self.journal is not None:  # not before: a call that is refused leaves no folder behind
            check_writable(self.journal.file)
            self.journal.begin()
        writer = CaptionWriter(arguments, names, self._failed)
        for path, record in records.items():
            self._restore(path, record, writer)
        if todo:
            self._caption(todo, models, writer)
        writer.finish()
        if "csv" in arguments.write:
            file = arguments.output / TABLE
            each = dict.fromkeys(paths)
            save_bytes(table(self.rows[path] for path in each if path in self.rows), file)
            self._show_file(file)
        self._save_pages()
        if self.failures:
            return 1 if self.done else 2
        return 0

    # ------------------------------------------------------------------------------- before

    def _collect(self) -> list[Path]:
        """Return the photos to caption, in the order given; say what is skipped."""
        arguments = self.arguments
        skipped = Skipped()
        outside = () if arguments.output is None else (os.path.abspath(arguments.output),)
        paths: list[Path] = []
        for name in arguments.photos:
            if name == "-":
                paths.append(STANDARD_INPUT)
            elif os.path.isdir(name):  # Path.is_dir raises for a name that no file can have
                unreadable = len(skipped.unreadable)
                found = list(
                    photos_in(Path(name), skipped, recursive=arguments.recursive, leave_out=outside)
                )
                for sentence in skipped.unreadable[unreadable:]:
                    self._failed(None, sentence)
                if not found and len(skipped.unreadable) == unreadable:
                    self._failed(Path(name), "the folder holds no photos")
                paths += found
            elif _is_page(name):
                try:
                    page = Page(Path(name))
                except CaptionerError as error:
                    self._failed(None, error)
                    continue
                self.pages.append(page)
                named = set(paths)  # pages of a site share images
                paths += [image for image in page.images if image not in named]
                if not page.images:
                    logger.info(f"{name}: no image lacks an alternative text")
                if page.elsewhere:
                    logger.info(f"{name}: images left that are no local files: {page.elsewhere}")
            else:
                paths.append(Path(name))
        if skipped.sentence():
            logger.info(skipped.sentence())
        return paths

    def _load_models(self) -> _Models:
        """Load the models, and refuse options that they cannot follow."""
        arguments = self.arguments
        models = [(str(name), load_captioner(name, arguments)) for name in self._model_names()]
        check_attention_options(arguments, [captioner for _, captioner in models])
        for name, captioner in models:
            if arguments.min_confidence is not None and captioner.calibrator is None:
                raise CaptionerError(
                    f"--min-confidence: the model {name} has no calibrator, so its captions have "
                    "no confidence; make one with captioner calibrate"
                )
        return models

    def _model_names(self) -> list[str | Path]:
        return self.arguments.compare or [parsing.chosen_model(self.arguments)]

    def _names_and_records(
        self, paths: list[Path]
    ) -> tuple[dict[Path, str], dict[Path, dict[str, Any]]]:
        """Return the names of the photos' pictures, and the records of those that are done."""
        arguments = self.arguments
        if arguments.output is None:
            return {}, {}
        from captioner.checkpoint import model_folder
        from captioner.visualization import output_names

        folders = [model_folder(name) for name in self._model_names()]
        options = {key: vars(arguments)[key] for key in vars(arguments) if key not in _NOT_SETTINGS}
        # Only where they matter, so that other folders that earlier versions began go on.
        if arguments.compare:
            options["compare"] = True
        if arguments.min_confidence is not None and arguments.save:
            options["min_confidence"] = arguments.min_confidence  # decides what is drawn
        self.journal = Journal(arguments.output, settings_digest(folders, options))
        shown = [Path("stdin") if path == STANDARD_INPUT else path for path in paths]
        proposed = dict(zip(paths, output_names(shown), strict=True))
        names, moved = self.journal.names(proposed)
        for path in moved if arguments.save else ():
            logger.info(
                f"{path}: its pictures are named {names[path]}, because {arguments.output} has "
                f"{proposed[path]} of another photo"
            )
        records = {}
        if arguments.resume:
            found = {path: self.journal.done(path) for path in paths if path != STANDARD_INPUT}
            records = {path: record for path, record in found.items() if record is not None}
            if records:
                logger.info(f"{len(records)} of {len(paths)} photos were done before")
        unknown = self.journal.unknown_pictures(names.values()) if arguments.save else []
        if unknown:
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            logger.info(f"{arguments.output}: {unknown[0]}{more} of an earlier run may be replaced")
        return names, records

    # ------------------------------------------------------------------------------- during

    def _caption(self, paths: list[Path], models: _Models, writer: CaptionWriter) -> None:
        """Open the photos, caption them in batches by every model, and write the output."""
        from captioner.data.opening import opened
        from captioner.runtime.parallel import parallel_map

        arguments = self.arguments
        with progress_bar(total=len(paths), unit="photo", disable=len(paths) == 1) as bar:

            def unreadable(path: Path, reason: object) -> None:
                self._failed(path, reason)
                bar.update()

            def captioned(batch: _Batch) -> tuple[_Batch, list[list[Caption]]]:
                images = [image for _, image in batch]
                return batch, [
                    captioner.caption_batch(
                        images,
                        beam_size=arguments.beam_size,
                        max_words=arguments.max_words,
                        length_penalty=arguments.length_penalty,
                        **attention_options(arguments, captioner),
                    )
                    for _, captioner in models
                ]

            device = models[0][1].device
            photos = ((path, path) for path in paths)
            batches = opened(photos, unreadable, device, read=open_photo)
            at_random = any(
                captioner.samples_cells(arguments.at_test, arguments.paths)
                for _, captioner in models
            )
            for batch, by_model in (
                map(captioned, batches) if at_random else parallel_map(captioned, batches, device)
            ):
                for place, (path, image) in enumerate(batch):
                    captions = [
                        (name, captions[place])
                        for (name, _), captions in zip(models, by_model, strict=True)
                    ]
                    self._write(path, image, captions, writer)
                    bar.update()

    def _write(
        self,
        path: Path,
        image: Image.Image,
        captions: list[tuple[str, Caption]],
        writer: CaptionWriter,
    ) -> None:
        """Print and draw a photo's caption, or those of several models, and record it."""
        arguments = self.arguments
        failures = self.failures
        if self.journal is not None and arguments.save:
            self.journal.reopen(path)
        pictures = writer.write(path, image, captions)
        self.done += 1
        for name, caption in captions:
            if is_withheld(caption.confidence, arguments.min_confidence):
                by = f" by {name}" if len(captions) > 1 else ""
                logger.warning(
                    f"{path}: no caption{by}, because the confidence {caption.confidence:.2f} is "
                    f"below {arguments.min_confidence:g}"
                )
        caption = captions[0][1]
        self._keep(path, caption.text, caption.confidence)
        if self.journal is not None and self.failures == failures and path != STANDARD_INPUT:
            content: dict[str, Any] = {
                "caption": caption.text,
                "confidence": caption.confidence,
            }
            if arguments.compare:
                least = arguments.min_confidence
                given = [c for c in captions if not is_withheld(c[1].confidence, least)]
                content = {"captions": {name: each.text for name, each in given}}
                caption = given[0][1] if given else caption
            content["unsure"] = caption.is_unsure
            self.journal.add(path, writer.names[path], content, pictures)

    def _keep(self, path: Path, text: str, confidence: float | None) -> None:
        """Write a caption as an alternative text, or keep it for the files of all photos."""
        arguments = self.arguments
        if not arguments.write:
            return
        withheld = is_withheld(confidence, arguments.min_confidence)
        alternative = "" if withheld else alt_text(text, arguments.max_length)
        self.rows[path] = (str(path), alternative, confidence)
        if "xmp" in arguments.write and path != STANDARD_INPUT:
            try:
                if alternative:
                    self._show_file(save_sidecar(path, alternative))
                elif withheld and (removed := remove_sidecar(path)):
                    logger.warning(f"{removed}: removed, because its caption is now withheld")
            except CaptionerError as error:
                self._failed(None, error)

    def _restore(self, path: Path, record: dict[str, Any], writer: CaptionWriter) -> None:
        """Add a photo that an earlier run captioned to the files that list all photos."""
        self.done += 1
        text = record.get("caption")
        if self.arguments.compare:  # the gallery shows the caption of the first model
            text = next(iter(record.get("captions", {}).values()), None)
        if not isinstance(text, str):
            return
        self._keep(path, text, record.get("confidence"))
        withheld = is_withheld(record.get("confidence"), self.arguments.min_confidence)
        if "html" in self.arguments.save and not withheld:
            try:
                unsure = record.get("unsure", False)
                writer.add_to_gallery(path, open_photo(path), text, unsure=unsure)
            except CaptionerError as error:
                self._failed(path, error)

    # -------------------------------------------------------------------------------- after

    def _save_pages(self) -> None:
        """Write the pages with the alternative texts filled in.

        With --in-place that is the page itself, else a copy: in --output, where none replaces
        another, or next to it.
        """
        if not self.pages:
            return
        from captioner.visualization import output_names

        arguments = self.arguments
        names = output_names([page.file for page in self.pages], with_suffix=True)
        texts = {path: text for path, (_, text, _) in self.rows.items()}
        for page, name in zip(self.pages, names, strict=True):
            if arguments.in_place:
                file = page.file
            elif arguments.output is not None:
                file = arguments.output / name
                if os.path.abspath(file) == os.path.abspath(page.file):
                    self._failed(page.file, "would be replaced; add --in-place if that is meant")
                    continue
                if name == GALLERY and "html" in arguments.save:
                    self._failed(
                        page.file,
                        f"its copy would replace the gallery {file}; leave out --save html, or add "
                        "--in-place",
                    )
                    continue
            else:
                file = page.file.with_name(f"{page.file.stem}.alt{page.file.suffix}")
            try:
                # Of a link to a page, the page is what changes.
                save_bytes(page.filled(texts), file.resolve() if arguments.in_place else file)
            except CaptionerError as error:
                self._failed(None, error)
                continue
            self._show_file(file)
            self.done += 1

    def _show_file(self, file: Path) -> None:
        if not self.arguments.json:
            show(printable(file))

    def _failed(self, path: Path | None, reason: object) -> None:
        self.failures += 1
        logger.warning(str(reason) if path is None else f"{path}: {reason}")
