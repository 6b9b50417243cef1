"""Files that `--write` writes: sidecars, text files, a table, and pages with alternative texts."""

from __future__ import annotations

import argparse
import contextlib
import csv
import html
import io
import os
import posixpath
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from captioner.cli import is_withheld
from captioner.cli.parsing import STANDARD_INPUT
from captioner.errors import CaptionerError, listed
from captioner.files import save_bytes
from captioner.log import logger

MAX_LENGTH = 125  # characters; longer alternative texts are cut off by some screen readers
TABLE = "captions.csv"
_HEADING = "image,caption,confidence"  # of the table

_TOOLKIT = "captioner"  # in x:xmptk; marks a sidecar that captioner wrote and may replace
_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_PROPERTIES = {
    "dc:description": "http://purl.org/dc/elements/1.1/",
    "Iptc4xmpCore:AltTextAccessibility": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
}

BLANK = f"""<?xml version="1.0" encoding="UTF-8"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="{_TOOLKIT}">
 <rdf:RDF xmlns:rdf="{_RDF}">
 </rdf:RDF>
</x:xmpmeta>
""".encode()  # a sidecar of captioner without texts

# Beginnings to leave out: a screen reader has already said "image".
_PREFIX = re.compile(
    r"""^(?:(?:this|it|here|there)\ is\ )?
        (?:(?:an?|the|this|some|two|several)\ )?
        (?:(?:black\ and\ white|colou?r|old|blurry|close[- ]up|vintage|stock)\ )*
        (?:photo(?:graph)?s?|pictures?|images?|snapshots?|pics?|close[- ]up)
        \ (?:of|showing|shows)[ ]
        | ^(?:this|it|here)\ is\ (?=an?\ |the\ )
    """,
    re.VERBOSE | re.IGNORECASE,
)


def alt_text(caption: str) -> str:
    """Return a caption as an alternative text.

    "A photo of" and the like are left out, the first letter becomes a capital, and what is longer
    than MAX_LENGTH is cut at a word.

    >>> alt_text("a photo of two dogs in the snow")
    'Two dogs in the snow'
    """
    text = " ".join(caption.split())
    while (shorter := _PREFIX.sub("", text)) != text:
        text = shorter
    text = textwrap.shorten(text, MAX_LENGTH, placeholder="…")
    return text[:1].upper() + text[1:]


class TextWriter:
    """Writes the captions of a run as `--write` says; `failed` is called with what goes wrong."""

    def __init__(self, arguments: argparse.Namespace, failed: Callable[[object], None]) -> None:
        self.arguments, self.failed = arguments, failed
        self.pages: list[Page] = []
        # The alternative text of each photo (empty where it is withheld) and its confidence.
        self._rows: dict[Path | str, tuple[str, float | None]] = {}
        self._kept: list[Path | str] = []  # files that have a text already
        self._owners: dict[str, Path] = {}  # the photos of the files next to them
        if "csv" in arguments.write:
            self._heading, self._table = read_table(arguments.output / TABLE)

    def images_of(self, file: Path) -> list[Path]:
        """Return the images of a page that lack a text."""
        original = file.with_name(f"{file.stem.removesuffix('.alt')}{file.suffix}")
        if original != file and original.exists():
            logger.info(f"{file}: passed over, as it is the copy of {original.name}")
            return []
        try:
            page = Page(file, self.arguments.site_root)
        except CaptionerError as error:
            self.failed(error)
            return []
        self.pages.append(page)
        found = f"{len(page.images)} here, {page.elsewhere} elsewhere"
        if page.empty:
            found += f'; {page.empty} with alt="", which may mark decoration'
        logger.info(f"{file}: images without an alternative text: {found}")
        return page.images

    def add(self, photo: Path | str, caption: str, confidence: float | None) -> list[Path]:
        """Write a photo's own files, keep its caption for the others, and return the files."""
        options, written = self.arguments, list[Path]()
        withheld = is_withheld(confidence, options.min_confidence)
        self._rows[photo] = ("" if withheld else alt_text(caption), confidence)
        for kind in ("xmp", "txt"):
            if kind in options.write and not withheld:
                try:
                    file, has_text = self._save_next_to(photo, caption, kind)
                    (written if has_text or options.overwrite else self._kept).append(file)
                except CaptionerError as error:
                    self.failed(error)
        return written

    def _save_next_to(self, photo: Path | str, caption: str, kind: str) -> tuple[Path, bool]:
        """Write a photo's sidecar or text file; return it, and whether it has this text."""
        options = self.arguments
        if not isinstance(photo, Path):
            raise CaptionerError(
                f"{photo}: no {kind} is written, as it would lie next to the photo's file; --write "
                "csv --output DIR writes a table"
            )
        appends = kind == "xmp" and options.xmp_name == "append"
        file = photo.with_name(f"{photo.name if appends else photo.stem}.{kind}")
        owner = self._owners.setdefault(os.path.normcase(os.path.abspath(file)), photo)
        if os.path.abspath(owner) != os.path.abspath(photo):  # another photo of this run
            raise CaptionerError(
                f"{photo}: {file.name} is that of {owner.name}, too; rename one of the two photos"
            )
        if kind == "xmp":
            merge, overwrite = options.xmp_merge, options.overwrite
            return file, save_sidecar(file, alt_text(caption), merge=merge, overwrite=overwrite)
        text = f"{options.prefix.rstrip()} {caption}".lstrip()
        text += f" {options.suffix}" if options.suffix[:1].isalnum() else options.suffix
        return file, self._save(f"{text}\n".encode(errors="backslashreplace"), file)

    def _save(self, content: bytes, file: Path) -> bool:
        """Write a file unless another is there; return whether it has this content."""
        if not os.path.lexists(file) or self.arguments.overwrite:
            save_bytes(content, file)
            return True
        with contextlib.suppress(OSError):  # what cannot be read is not this
            return file.read_bytes() == content
        return False

    def finish(self, photos: Iterable[Path | str]) -> list[Path]:
        """Write the table, and copies of the pages with the texts filled in; return the files.

        Texts that a table has already stay, as somebody may have corrected them.
        Copies go next to the pages, or to --output, in folders as those of the pages.
        """
        written, output = list[Path](), self.arguments.output
        if "csv" in self.arguments.write:
            rows = self._table
            for photo in photos:
                if photo in self._rows:
                    row = table_row(photo, *self._rows[photo], output)
                    row += [""] * (len(self._heading) - len(row))  # columns of the user's own
                    before = rows.setdefault(row[0], row)
                    if self.arguments.overwrite or photo == STANDARD_INPUT or not before[1]:
                        rows[row[0]] = row
                    elif before[1] != row[1]:
                        self._kept.append(photo)
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows([self._heading, *rows.values()])
            try:
                file = output / TABLE
                save_bytes(text.getvalue().encode(errors="backslashreplace"), file)
                written.append(file)
            except CaptionerError as error:
                self.failed(error)
        texts = {path: text for path, (text, _) in self._rows.items() if isinstance(path, Path)}
        folders = [os.path.dirname(os.path.abspath(page.file)) for page in self.pages]
        top = os.path.commonpath(folders) if folders else None
        pages = {os.path.realpath(page.file) for page in self.pages}
        for page in self.pages:
            copy = page.file.with_name(f"{page.file.stem}.alt{page.file.suffix}")
            file = copy if output is None else output / os.path.relpath(page.file, top)
            try:
                if os.path.realpath(file) in pages:
                    raise CaptionerError(f"{file}: would be replaced; choose another --output")
                content = page.filled(texts)
                if output is None and content == page.content:
                    logger.info(f"{page.file}: no text is added, so no copy is written")
                elif self._save(content, file):
                    written.append(file)
                else:
                    self._kept.append(file)
                    _warn_of_new_images(page, file)
            except CaptionerError as error:
                self.failed(error)
        if self._kept:
            kept = listed(self._kept, 1)
            logger.info(f"{kept}: has a text already, so it stays; --overwrite replaces it")
        return written


def _warn_of_new_images(page: Page, copy: Path) -> None:
    """Warn of images that a page has got since its copy, which stays, was written."""
    with contextlib.suppress(OSError):  # of what cannot be read, nothing is known
        there = unquote(html.unescape(copy.read_text(encoding="utf-8", errors="replace")))
        if new := [image.name for image in page.images if image.name not in there]:
            logger.warning(f"{copy}: lacks {listed(new)}, which {page.file.name} has; add it there")


def table_row(image: Path | str, caption: str, confidence: float | None, folder: Path) -> list[str]:
    """Return an image, its alternative text and its confidence as the cells of a table in a folder.

    It can be read as a data set where it lies: paths lead from its folder to the photos. No cell
    begins as a formula of a spreadsheet does: paths get `./` in front, texts a blank.
    """
    path = os.path.relpath(image, folder) if isinstance(image, Path) else image
    path = path.encode(errors="backslashreplace").decode()  # of bytes that are not UTF-8
    cells = [_no_formula(path, "./"), _no_formula(caption, " ")]
    return [*cells, "" if confidence is None else f"{confidence:.4f}"]


def read_table(file: Path) -> tuple[list[str], dict[str, list[str]]]:
    """Return the heading of a table and its rows by image, none where there is no such file."""
    expected, heading, rows = _HEADING.split(","), list[str](), list[list[str]]()
    if not file.is_file():
        return expected, {}
    with contextlib.suppress(ValueError, csv.Error):  # UnicodeDecodeError is a ValueError
        text = io.StringIO(file.read_bytes().decode("utf-8-sig"), newline="")
        heading, *rows = csv.reader(text, strict=True)
    if heading[: len(expected)] != expected:
        raise CaptionerError(
            f"{file} is no table of captioner, with commas and in UTF-8, so it is left as it is; "
            "choose another --output"
        )
    return heading, {row[0]: row for row in rows if len(row) > 1}


def _no_formula(cell: str, before: str) -> str:
    return before + cell if cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


def save_sidecar(file: Path, text: str, *, merge: bool = False, overwrite: bool = False) -> bool:
    """Write a text as `dc:description` and as IPTC's `AltTextAccessibility` into a sidecar.

    Texts that it has stay, unless `overwrite` replaces them; one that another program wrote is
    refused, unless `merge` adds to it. Return whether it was written, or is as it would be.
    """
    try:
        found = file.read_bytes() if file.exists() else BLANK
        is_ours = f'x:xmptk="{_TOOLKIT}"'.encode() in found
        if not (is_ours or merge):
            raise CaptionerError(
                f"{file} was written by another program, so it is left as it is; --xmp-merge adds "
                "the texts to it"
            )
        content = merged(BLANK if is_ours and overwrite else found, text, overwrite=overwrite)
    except OSError as error:
        raise CaptionerError(f"{file}: cannot be read ({error.strerror})") from None
    except (ValueError, ElementTree.ParseError) as error:
        raise CaptionerError(f"{file}: is no XMP in UTF-8 ({error}); it is left as it is") from None
    if content != found:
        save_bytes(content, file)
    return content != found or content == merged(BLANK, text)


def merged(content: bytes, text: str, *, overwrite: bool = False) -> bytes:
    """Return a sidecar with the description and the alternative text that it lacks.

    They come into an `rdf:Description` of their own, last; `overwrite` also replaces what it has.

    Raises:
        ValueError, ParseError: It is no XMP in UTF-8.
    """
    content.decode()
    root = ElementTree.fromstring(content)
    prefixes = [pair for _, pair in ElementTree.iterparse(io.BytesIO(content), ["start-ns"])]
    allowed = "".join(c for c in text if c.isprintable())  # XML has no control characters
    elements = ""
    for name, namespace in _PROPERTIES.items():
        local_name = name.partition(":")[2]
        found = root.iterfind(f".//{{{_RDF}}}Description/{{{namespace}}}{local_name}")
        if not overwrite and any("".join(each.itertext()).strip() for each in found):
            continue
        for prefix in {prefix for prefix, of in prefixes if of == namespace}:
            tag = re.escape(f"{prefix}:{local_name}")
            old = rf"<{tag}\b[^>]*/>|<{tag}\b.*?</{tag}\s*>"
            content = re.sub(old.encode(), b"", content, flags=re.DOTALL)
        elements += (
            f'<{name} xmlns:{name.partition(":")[0]}="{namespace}"><rdf:Alt>'
            f'<rdf:li xml:lang="x-default">{escape(allowed)}</rdf:li></rdf:Alt></{name}>'
        )
    if elements:
        start, end = f'<rdf:Description rdf:about="" xmlns:rdf="{_RDF}">', "</rdf:Description>\n"
        content = content.replace(f"{start}{end}".encode(), b"")  # what was replaced leaves it
        ends = [match.start() for match in re.finditer(rb"</([\w.-]+:)?RDF\s*>", content)]
        if not ends:
            raise ValueError("it has no rdf:RDF with content")
        content = content[: ends[-1]] + f"{start}{elements}{end}".encode() + content[ends[-1] :]
    return content


# Where a script loads the image when it is scrolled to, `src` is a placeholder.
_ADDRESSES = ("data-src", "data-lazy-src", "data-original", "src")
_SRCSETS = ("data-srcset", "data-lazy-srcset", "srcset")
_LABELS = ("alt", "aria-label", "aria-labelledby")  # attributes that give an image a text
_ATTRIBUTE = re.compile(r"""\s+([^\s=>/"']+)(?:\s*=\s*(?:"[^"]*"|'[^']*'|[^\s>"']+)?)?""")

# Markdown: fenced code and code in a line; an image without a text, as `![](a.jpg)`.
_CODE = re.compile(
    r"^ {0,3}(`{3,}|~{3,})[^\n]*\n.*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)|(?<!`)(`+)(?!`).+?(?<!`)\2(?!`)",
    re.MULTILINE | re.DOTALL,
)
_IMAGE = re.compile(
    r"""(?<!\\)(!\[\s*\])\(\s*(?:<([^>\n]*)>|([^()\s]*(?:\([^()\s]*\)[^()\s]*)*))[^()]*\)"""
)


class Page:
    """A page of HTML or Markdown whose images lack alternative texts.

    Images with a text keep it, be it an ARIA label. Those that are marked as decoration, or hidden
    from screen readers, are left alone. The rest of the page stays as it is, byte by byte.

    Addresses that begin with `/` begin at the `site_root`. Without it, their files are searched in
    the page's folder and those above it.
    """

    def __init__(self, file: Path, site_root: Path | None = None) -> None:
        self.file = file
        try:
            self.content = file.read_bytes()
        except OSError as error:
            raise CaptionerError(f"{file}: cannot be read ({error.strerror})") from None
        try:
            self._text, self._encoding = self.content.decode(), "utf-8"
        except UnicodeDecodeError:  # latin-1 keeps the bytes of every other encoding
            self._text, self._encoding = self.content.decode("latin-1"), "latin-1"
        markup = self._text
        tags: list[tuple[int, str, str]] = []
        if file.suffix.lower() in (".md", ".markdown"):
            # Blanks instead of code, so that all offsets stay.
            markup = _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), self._text)
            tags = [(m.start(), m[1], m[2] or m[3]) for m in _IMAGE.finditer(markup)]
        self.elsewhere = 0  # images whose bytes are in no local file
        self._gaps: list[tuple[int, str, Path]] = []  # offset, tag and file of each image
        reader = _TagReader(markup)
        self.empty = reader.empty  # images with `alt=""`
        for start, tag, address in sorted([*tags, *reader.tags]):
            if image := _local_file(address, file, site_root, reader.base):
                self._gaps.append((start, tag, image))
            elif address:
                self.elsewhere += 1

    @property
    def images(self) -> list[Path]:
        """The images to caption, each once, in the page's order."""
        return list(dict.fromkeys(image for _, _, image in self._gaps))

    def filled(self, texts: Mapping[Path, str]) -> bytes:
        """Return the page with these alternative texts, by the image's path."""
        pieces, end = [], 0
        for start, tag, image in self._gaps:
            if text := texts.get(image):
                pieces += [self._text[end:start], _with_alt(tag, text)]
                end = start + len(tag)
        page = "".join([*pieces, self._text[end:]])
        return page.encode(self._encoding, errors="xmlcharrefreplace")


class _TagReader(HTMLParser):
    """Collects the `img` tags without an alternative text (offset, tag, address), and the base."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[int, str, str]] = []
        self.base, self.empty = "", 0
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "base":  # the first one counts
            self.base = self.base or dict(attrs).get("href") or ""
        if tag != "img" or not (text := self.get_starttag_text()):
            return
        # If an attribute is given twice, the first one counts.
        values = {name: (value or "").strip() for name, value in reversed(attrs)}
        role = values.get("role", "").lower().split()[:1]
        hidden = values.get("aria-hidden", "").lower() == "true"
        if hidden or role in (["presentation"], ["none"]) or any(map(values.get, _LABELS)):
            return
        self.empty += "alt" in values
        line, column = self.getpos()
        addresses = [values.get(name, "") for name in _ADDRESSES]
        addresses += [values.get(n, "").partition(" ")[0].rstrip(",") for n in _SRCSETS]
        found = [address for address in addresses if address]
        address = next((a for a in found if not a.lower().startswith("data:")), "".join(found[:1]))
        self.tags.append((self._lines[line - 1] + column, text, address))


def _local_file(source: str, page: Path, site_root: Path | None, base: str) -> Path | None:
    """Return the file of an address, which may be relative to `base`; None for one elsewhere."""
    try:
        parts = urlsplit(urljoin(base, source) if urlsplit(base).netloc else source)
    except ValueError:
        return None
    if parts.scheme or parts.netloc or not parts.path:
        return None
    address = unquote(posixpath.join(posixpath.dirname(base), parts.path))
    path = address.lstrip("/")
    if not address.startswith("/"):
        return page.parent / path
    if site_root is not None:
        return site_root / path
    folders = [page.parent, *page.absolute().parent.parents]
    return next((f / path for f in folders if (f / path).is_file()), page.parent / path)


def _with_alt(tag: str, text: str) -> str:
    """Return an `img` tag, or Markdown's `![]`, with an alternative text in the place of none."""
    if tag.startswith("!"):
        escaped = re.sub(r"([]\\[])", r"\\\1", text)
        return f"![{escaped}]"
    head, rest = tag[: len("<img")], tag[len("<img") :]
    rest = _ATTRIBUTE.sub(lambda found: "" if found[1].lower() == "alt" else found[0], rest)
    return f'{head} alt="{html.escape(text)}"{rest}'
