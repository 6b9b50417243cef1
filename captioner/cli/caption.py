"""`caption.py`, `captioner caption`: write captions for photos and draw their attention."""

from __future__ import annotations

import argparse
import json
import os
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from PIL import Image

from captioner.cli import load_captioner, parsing, run_command, show
from captioner.cli.alt_text import TextWriter, add_write_options, check_write_options
from captioner.cli.journal import JOURNAL, Journal, settings_digest
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
from captioner.cli.pages import PAGE_SUFFIXES, Page
from captioner.cli.photos import STANDARD_INPUT, Skipped, open_photo, photos_in, refusal_of
from captioner.errors import CaptionerError
from captioner.files import check_writable
from captioner.log import logger, printable, progress_bar

if TYPE_CHECKING:
    from captioner.captioner import Captioner
    from captioner.cli.drawing import PictureWriter
    from captioner.types import Caption

_Photo: TypeAlias = Path | str  # a file; an address or standard input
_Batch: TypeAlias = "list[tuple[_Photo, Image.Image]]"
_Found: TypeAlias = "list[tuple[str, list[Caption]]]"  # captions by the models' names, best first

# Options that change neither a caption nor a picture, so that --resume may be given others.
_NOT_SETTINGS = frozenset(
    "photos output model checkpoint compare device engine json quiet verbose resume recursive "
    "write min_confidence overwrite prefix suffix xmp_merge xmp_name site_root "
    "allow_urls".split()
)
_SEARCH = "beam_size max_words min_words length_penalty num_captions temperature top_p seed".split()
# Options that came later. They count where they are given, so that older folders can be resumed.
_LATER_SETTINGS = frozenset("num_captions min_words sample temperature top_p seed".split())


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    check_output_options(parser, arguments)
    check_write_options(parser, arguments)
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
    chosen = parsing.add_model_options(parser)
    chosen.add_argument(
        "--compare",
        nargs="+",
        metavar="MODEL",
        help="several models, bundled names or folders: with --output, one sheet a photo with a "
        "row a model",
    )
    add_output_options(parser)
    parsing.add_search_options(parser, min_words=True)
    captions = parser.add_argument_group("several captions")
    captions.add_argument(
        "--num-captions",
        type=parsing.whole_number_from(1, parsing.MAX_BEAM_SIZE),
        metavar="N",
        help="captions a photo, best first; files and pictures are of the first",
    )
    captions.add_argument(
        "--sample",
        action="store_true",
        help="draw captions at random from the model's probabilities, instead of a search",
    )
    captions.add_argument(
        "--temperature",
        type=parsing.number_from(0.01, 100),
        metavar="T",
        help="with --sample: below 1 likely words become likelier (default: 1)",
    )
    captions.add_argument(
        "--top-p",
        type=parsing.number_from(0.001, 1),
        metavar="P",
        help="with --sample: only from the likeliest words whose probabilities sum to P",
    )
    captions.add_argument(
        "--seed",
        type=parsing.whole_number_from(0, 2**63 - 1),
        metavar="N",
        help="with --sample: draw the same captions again",
    )
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
        "--allow-urls", action="store_true", help="fetch photos whose address is given (https://…)"
    )
    add_write_options(parser)
    return parser


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuse options that make no sense together."""
    if arguments.resume and arguments.output is None:
        parser.error("argument --resume: needs --output, the folder that an earlier run wrote to")
    if "html" in arguments.write and not any(map(_is_page, arguments.photos)):
        parser.error("argument --write: html needs a page among the photos, such as index.html")
    if arguments.sample:
        names, problem = ("beam_size", "length_penalty", "min_confidence"), "is not for --sample"
    else:
        names, problem = ("temperature", "top_p", "seed"), "needs --sample"
    for name in names:
        if getattr(arguments, name) is not None:
            parser.error(f"argument --{name.replace('_', '-')}: {problem}")
    count, beams = arguments.num_captions or 1, arguments.beam_size
    if count > 1 and arguments.compare:
        parser.error("argument --num-captions: shows one model, so not with --compare")
    if not arguments.sample and beams is not None and count > beams:
        parser.error(f"argument --num-captions: is at most --beam-size, which is {beams}")


def _is_page(name: str) -> bool:
    return Path(name).suffix.lower() in PAGE_SUFFIXES and not os.path.isdir(name)


class _CaptionRun:
    """One run of the command: collects photos, captions them in batches, writes the output."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.failures = 0
        self.done = 0
        self.pages: list[Page] = []
        self.texts = TextWriter(arguments, lambda reason: self._failed(None, reason))
        self.journal: Journal | None = None
        self.pictures: PictureWriter | None = None

    def run(self) -> int:
        """Caption the photos, write all output, and return the exit code."""
        arguments = self.arguments
        photos = self._collect()
        if not photos and not self.pages:
            return 2
        names, records = self._names_and_records(photos)
        todo = [photo for photo in photos if photo not in records]
        models = self._load_models() if todo else []
        if self.journal is not None:  # not before: a call that is refused leaves no folder behind
            from captioner.cli.drawing import PictureWriter

            check_writable(self.journal.file)
            self.journal.begin()
            self.pictures = PictureWriter(arguments, names, self._failed)
        for photo, record in records.items():
            self._restore(photo, record)
        if todo:
            self._caption(todo, models)
        for file in self.texts.finish(photos, self.pages):
            if not arguments.json:
                show(printable(file))
            self.done += 1
        if self.failures:
            return 1 if self.done else 2
        return 0

    # ------------------------------------------------------------------------------- before

    def _collect(self) -> list[_Photo]:
        """Return the photos to caption, in the order given; say what is skipped."""
        arguments = self.arguments
        skipped = Skipped()
        outside = () if arguments.output is None else (os.path.abspath(arguments.output),)
        photos: list[_Photo] = []
        for name in arguments.photos:
            if name == STANDARD_INPUT:
                photos.append(STANDARD_INPUT)
            elif refusal := refusal_of(name, allow_urls=arguments.allow_urls):
                self._failed(name, refusal)
            elif "://" in name and not os.path.exists(name):
                photos.append(name)
            elif os.path.isdir(name):  # Path.is_dir raises for a name that no file can have
                failures = self.failures
                found = list(
                    photos_in(
                        Path(name),
                        skipped,
                        partial(self._failed, None),
                        recursive=arguments.recursive,
                        leave_out=outside,
                    )
                )
                if not found and self.failures == failures:
                    self._failed(name, "the folder holds no photos")
                photos += found
            elif _is_page(name) and "html" not in arguments.write:
                self._failed(name, "is a page; to fill in the texts of its images add --write html")
            elif _is_page(name):
                photos += self._images_of(name, photos)
            else:
                photos.append(Path(name))
        if skipped.sentence():
            logger.info(skipped.sentence())
        return photos

    def _images_of(self, name: str, photos: Iterable[_Photo]) -> list[Path]:
        """Return the images of a page that are not among the photos yet, as those of a site are."""
        try:
            page = Page(Path(name), self.arguments.site_root)
        except CaptionerError as error:
            self._failed(None, error)
            return []
        self.pages.append(page)
        if not page.images:
            logger.info(f"{name}: no image that is here lacks an alternative text")
        if page.elsewhere:
            logger.info(f"{name}: images left that are no local files: {page.elsewhere}")
        known = set(photos)
        return [image for image in page.images if image not in known]

    def _load_models(self) -> list[tuple[str, Captioner]]:
        """Load the models by name, and refuse options that they cannot follow."""
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
        self, photos: list[_Photo]
    ) -> tuple[dict[_Photo, str], dict[_Photo, dict[str, Any]]]:
        """Return the names of the photos' pictures, and the records of those that are done."""
        arguments = self.arguments
        if arguments.output is None:
            return {}, {}
        from captioner.checkpoint import model_folder
        from captioner.visualization import output_names

        folders = [model_folder(name) for name in self._model_names()]
        options = {
            key: value
            for key, value in vars(arguments).items()
            if key not in _NOT_SETTINGS and (key not in _LATER_SETTINGS or value)
        }
        # Only where they matter, so that other folders that earlier versions began go on.
        if arguments.compare:
            options["compare"] = True
        if arguments.min_confidence is not None and arguments.save:
            options["min_confidence"] = arguments.min_confidence  # decides what is drawn
        self.journal = Journal(arguments.output, settings_digest(folders, options))
        shown = [Path("stdin" if photo == STANDARD_INPUT else photo) for photo in photos]
        proposed = dict(zip(photos, output_names(shown), strict=True))
        names, moved = self.journal.names(proposed)
        for path in moved if arguments.save else ():
            logger.info(
                f"{path}: its pictures are named {names[path]}, because {arguments.output} has "
                f"{proposed[path]} of another photo"
            )
        records: dict[_Photo, dict[str, Any]] = {}
        if arguments.resume:
            found = {photo: self.journal.done(photo) for photo in photos if isinstance(photo, Path)}
            records = {photo: record for photo, record in found.items() if record is not None}
            if records:
                logger.info(f"{len(records)} of {len(photos)} photos were done before")
        return names, records

    # ------------------------------------------------------------------------------- during

    def _caption(self, photos: list[_Photo], models: list[tuple[str, Captioner]]) -> None:
        """Open the photos, caption them in batches by every model, and write the output."""
        from captioner.data.image_batches import opened
        from captioner.runtime.parallel import parallel_map

        arguments = self.arguments
        captioners = [captioner for _, captioner in models]
        device = captioners[0].device
        at_random = arguments.sample or any(
            each.samples_cells(arguments.at_test, arguments.paths) for each in captioners
        )
        drawing = self.pictures.processes(len(photos)) if self.pictures else nullcontext(0)
        with (
            progress_bar(total=len(photos), unit="photo", disable=len(photos) == 1) as bar,
            drawing as ahead,
        ):
            waiting: deque[tuple[_Photo, _Found, Callable[[], list[Path]]]] = deque()

            def unreadable(photo: _Photo, reason: object) -> None:
                self._failed(photo, reason)
                bar.update()

            def captioned(batch: _Batch) -> tuple[_Batch, list[list[list[Caption]]]]:
                images = [image for _, image in batch]
                return batch, [self._captions_by(captioner, images) for captioner in captioners]

            def write_first() -> None:
                self._write(*waiting.popleft())
                bar.update()

            batches = opened(((p, p) for p in photos), unreadable, device, read=open_photo)
            for batch, by_model in (
                map(captioned, batches) if at_random else parallel_map(captioned, batches, device)
            ):
                for place, (photo, image) in enumerate(batch):
                    found = [
                        (name, captions[place])
                        for (name, _), captions in zip(models, by_model, strict=True)
                    ]
                    shown = self._not_withheld(found)
                    drawn: Callable[[], list[Path]] = list
                    if self.pictures and shown:
                        drawn = self.pictures.begin(photo, image, shown)
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
        files = self.texts.add(photo, caption.text, caption.confidence) if arguments.write else []
        if arguments.json:
            self._show_json(photo, found, pictures)
        else:
            self._show_text(photo, found, [*pictures, *files])
        self.done += 1
        if self.journal is None or self.failures > failures or not isinstance(photo, Path):
            return
        content: dict[str, Any] = {"caption": caption.text, "confidence": caption.confidence}
        if arguments.compare:
            shown = self._not_withheld(found)
            content = {"captions": {name: each.text for name, each in shown}}
        assert self.pictures is not None
        self.journal.add(photo, self.pictures.names[photo], content, pictures)

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

    def _restore(self, photo: _Photo, record: dict[str, Any]) -> None:
        """Add a photo that an earlier run captioned to the files that list all photos."""
        self.done += 1
        if self.arguments.write:
            self.texts.add(photo, record["caption"], record.get("confidence"))

    def _failed(self, photo: _Photo | None, reason: object) -> None:
        self.failures += 1
        logger.warning(str(reason) if photo is None else f"{photo}: {reason}")
