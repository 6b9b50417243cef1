"""Files that `--write` writes: sidecars, text files, a table, and pages with alternative texts."""

from __future__ import annotations

import argparse
import csv
import io
import os
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from captioner.cli import parsing
from captioner.cli.output import is_withheld
from captioner.cli.pages import Page
from captioner.cli.xmp import save_sidecar, sidecar_of
from captioner.errors import CaptionerError
from captioner.files import save_bytes
from captioner.log import logger

MAX_LENGTH = 125  # characters; longer alternative texts are cut off by some screen readers
TABLE = "captions.csv"
KINDS = ("xmp", "txt", "csv", "html")
_COLUMNS = ("image", "caption", "confidence")  # of the table

# Beginnings to leave out: a screen reader has already said "image".
_PREFIX = re.compile(
    r"""^(?:(?:this|it|here|there)\ is\ )?
        (?:(?:an?|the|this|some|two|several)\ )?
        (?:(?:black\ and\ white|colou?r|old|blurry|close[- ]up|vintage|stock)\ )*
        (?:photo(?:graph)?s?|pictures?|images?|snapshots?|pics?|close[- ]up)
        \ (?:of|showing|shows)[ ]
    """,
    re.VERBOSE | re.IGNORECASE,
)


def alt_text(caption: str, max_length: int = MAX_LENGTH) -> str:
    """Return a caption as an alternative text.

    "A photo of" and the like are left out, the first letter becomes a capital, and what is longer
    than `max_length` characters is cut at a word.

    >>> alt_text("a photo of two dogs in the snow")
    'Two dogs in the snow'
    >>> alt_text("a man rides a horse", max_length=12)
    'A man rides…'
    """
    text = " ".join(caption.split())
    while (shorter := _PREFIX.sub("", text)) != text:
        text = shorter
    if len(text) > max_length:
        kept = text[: max_length - 1]
        if text[max_length - 1] != " ":
            kept = kept.rpartition(" ")[0] or kept
        text = kept.rstrip(" ,;") + "…"
    return text[:1].upper() + text[1:]


def add_write_options(parser: argparse.ArgumentParser) -> None:
    """Add `--write` and the options that go with it."""
    files = parser.add_argument_group("alternative texts and caption files")
    files.add_argument(
        "--write",
        type=parsing.names_of(KINDS),
        default=(),
        metavar="KINDS",
        help="what to write, separated by commas: xmp (a sidecar PHOTO.xmp next to each photo), "
        f"txt (the caption as PHOTO's name with .txt, as training programs read it), csv ({TABLE} "
        "in --output), html (a copy of each page of HTML or Markdown given, with the missing "
        "texts of its images)",
    )
    files.add_argument(
        "--overwrite", action="store_true", help="replace texts that are there: --write txt and xmp"
    )
    files.add_argument("--prefix", default="", metavar="TEXT", help="begins each --write txt")
    files.add_argument("--suffix", default="", metavar="TEXT", help="ends each --write txt")
    files.add_argument(
        "--xmp-merge",
        action="store_true",
        help="add the texts to sidecars that another program wrote, and leave all else in them",
    )
    files.add_argument(
        "--xmp-name",
        choices=("append", "replace"),
        default="append",
        help="append: dog.jpg.xmp, for digiKam and darktable; replace: dog.xmp, for Lightroom "
        "(default: append)",
    )
    files.add_argument(
        "--site-root",
        type=Path,
        metavar="DIR",
        help="where addresses in pages that begin with / begin (default: the page's folder, or "
        "one above it, whichever has the file)",
    )


def check_write_options(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuse options of `--write` that make no sense together."""
    write = arguments.write
    if "csv" in write and arguments.output is None:
        parser.error("argument --write: csv needs --output, the folder for the table")
    if write and arguments.compare:
        parser.error("argument --write: takes the captions of one model, so not with --compare")
    for option, kinds in {
        "site_root": ("html",),
        "prefix": ("txt",),
        "suffix": ("txt",),
        "xmp_merge": ("xmp",),
        "overwrite": ("txt", "xmp"),
    }.items():
        if getattr(arguments, option) and not {*kinds} & {*write}:
            name = option.replace("_", "-")
            parser.error(f"argument --{name}: needs --write {' or '.join(kinds)}")


class TextWriter:
    """Writes the captions of a run as `--write` says.

    Args:
        failed: Called with the reason why something cannot be written, which names its file.

    Raises:
        CaptionerError: The table would replace a file of another program.
    """

    def __init__(self, arguments: argparse.Namespace, failed: Callable[[object], None]) -> None:
        self.arguments, self.failed = arguments, failed
        # The alternative text of each photo (empty where it is withheld) and its confidence.
        self.rows: dict[Path | str, tuple[str, float | None]] = {}
        self._kept: list[Path] = []  # files that have a text already
        if "csv" in arguments.write:
            check_table(arguments.output / TABLE)

    def add(self, photo: Path | str, caption: str, confidence: float | None) -> list[Path]:
        """Write a photo's own files, and keep its caption for those of all photos.

        Returns:
            The files written.
        """
        arguments = self.arguments
        withheld = is_withheld(confidence, arguments.min_confidence)
        alternative = "" if withheld else alt_text(caption)
        self.rows[photo] = (alternative, confidence)
        if withheld or not isinstance(photo, Path):
            return []
        written: list[Path] = []
        try:
            if "xmp" in arguments.write:
                file = sidecar_of(photo, arguments.xmp_name)
                merge, overwrite = arguments.xmp_merge, arguments.overwrite
                saved = save_sidecar(file, alternative, merge=merge, overwrite=overwrite)
                (written if saved else self._kept).append(file)
            if "txt" in arguments.write:
                file = photo.with_suffix(".txt")
                if os.path.lexists(file) and not arguments.overwrite:
                    self._kept.append(file)
                else:
                    save_bytes(self._training_text(caption), file)
                    written.append(file)
        except CaptionerError as error:
            self.failed(error)
        return written

    def _training_text(self, caption: str) -> bytes:
        prefix, suffix = self.arguments.prefix.rstrip(), self.arguments.suffix
        text = f"{prefix} {caption}" if prefix else caption
        text += f" {suffix}" if suffix[:1].isalnum() else suffix
        return f"{text}\n".encode(errors="backslashreplace")

    def finish(self, photos: Iterable[Path | str], pages: Collection[Page]) -> list[Path]:
        """Write the table and the pages, and return their files.

        Args:
            photos: In the order in which the table lists them.
        """
        if self._kept:
            more = f" and {len(self._kept) - 1} more" if len(self._kept) > 1 else ""
            logger.info(
                f"{self._kept[0]}{more}: has a text already, so it stays; --overwrite replaces it"
            )
        written = []
        if "csv" in self.arguments.write:
            file = self.arguments.output / TABLE
            rows = [(p, *self.rows[p]) for p in dict.fromkeys(photos) if p in self.rows]
            save_bytes(table(rows, file.parent), file)
            written.append(file)
        return [*written, *(self._save_pages(pages) if pages else [])]

    def _save_pages(self, pages: Collection[Page]) -> list[Path]:
        """Write copies of the pages with the texts filled in, and return their files.

        They go next to the pages, or to --output, where none replaces another.
        """
        from captioner.visualization import output_names

        output = self.arguments.output
        texts = {path: text for path, (text, _) in self.rows.items() if isinstance(path, Path)}
        names = output_names([page.file for page in pages], with_suffix=True)
        written = []
        for page, name in zip(pages, names, strict=True):
            file = page.file.with_name(f"{page.file.stem}.alt{page.file.suffix}")
            if output is not None:
                file = output / name
            if os.path.abspath(file) == os.path.abspath(page.file):
                self.failed(f"{file}: would be replaced; choose another --output")
                continue
            try:
                save_bytes(page.filled(texts), file)
            except CaptionerError as error:
                self.failed(error)
                continue
            written.append(file)
        return written


def table(rows: Iterable[tuple[Path | str, str, float | None]], folder: Path) -> bytes:
    """Return rows of image, alternative text and confidence as CSV in UTF-8.

    It can be read as a data set where it lies: paths lead from its folder to the photos. No cell
    begins as a formula of a spreadsheet does: paths get `./` in front, texts a blank, which a
    reader of captions drops.

    Args:
        folder: Folder of the table.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for image, caption, confidence in rows:
        path = os.path.relpath(image, folder) if isinstance(image, Path) else image
        shown = "" if confidence is None else f"{confidence:.4f}"
        writer.writerow([_no_formula(path, "./"), _no_formula(caption, " "), shown])
    return text.getvalue().encode(errors="backslashreplace")


def _no_formula(cell: str, before: str) -> str:
    return before + cell if cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


def check_table(file: Path) -> None:
    """Check that the table of an earlier run, or nothing, would be replaced.

    Raises:
        CaptionerError: The file has another heading than `table` writes.
    """
    if not file.is_file():
        return
    with file.open("rb") as content:
        heading = content.readline()
    if heading.rstrip() != ",".join(_COLUMNS).encode():
        raise CaptionerError(
            f"{file} is no table of captioner, so it is left as it is; choose another --output"
        )
