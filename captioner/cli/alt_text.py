"""Captions as alternative texts: XMP sidecars, a table, and the images of an HTML page."""

from __future__ import annotations

import codecs
import contextlib
import csv
import html
import io
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit
from xml.sax.saxutils import escape

from captioner.errors import CaptionerError
from captioner.files import save_bytes

MAX_LENGTH = 125  # characters; longer alternative texts are cut off by some screen readers
TABLE = "captions.csv"
HTML_SUFFIXES = frozenset((".html", ".htm", ".xhtml"))
_COLUMNS = ("image", "caption", "confidence")  # of the table
_TOOLKIT = "captioner"  # in x:xmptk; marks a sidecar that captioner wrote and may replace

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


# ----------------------------------------------------------------------------------- XMP sidecars


def save_sidecar(photo: Path, text: str) -> Path:
    """Write a sidecar such as dog.jpg.xmp, which digiKam and darktable read, next to a photo.

    It holds the text as `dc:description` and as IPTC's `AltTextAccessibility`.

    Raises:
        CaptionerError: Another program wrote the existing sidecar, or it cannot be written.
    """
    file, is_ours = _sidecar(photo)
    if is_ours is False:
        raise CaptionerError(f"{file} was written by another program, so it is left as it is")
    save_bytes(xmp(text).encode(), file)
    return file


def remove_sidecar(photo: Path) -> Path | None:
    """Remove the sidecar that captioner wrote next to a photo, and return it; None without one.

    Raises:
        CaptionerError: It can be neither read nor removed.
    """
    file, is_ours = _sidecar(photo)
    if not is_ours:
        return None
    try:
        file.unlink()
    except OSError as error:
        raise CaptionerError(f"{file} cannot be removed ({error.strerror})") from None
    return file


def _sidecar(photo: Path) -> tuple[Path, bool | None]:
    """Return the file of a photo's sidecar, and whether captioner wrote it; None: it is missing."""
    file = photo.with_name(f"{photo.name}.xmp")
    try:
        return file, f'x:xmptk="{_TOOLKIT}"'.encode() in file.read_bytes()
    except FileNotFoundError:
        return file, None
    except OSError as error:
        raise CaptionerError(f"{file} cannot be read ({error.strerror})") from None


def xmp(text: str) -> str:
    """Return an XMP packet with a text as description and alternative text."""
    allowed = "".join(c for c in text if c.isprintable())  # XML has no control characters
    item = f'<rdf:Alt><rdf:li xml:lang="x-default">{escape(allowed)}</rdf:li></rdf:Alt>'
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="{_TOOLKIT}">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about=""
    xmlns:dc="http://purl.org/dc/elements/1.1/"
    xmlns:Iptc4xmpCore="http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/">
   <dc:description>{item}</dc:description>
   <Iptc4xmpCore:AltTextAccessibility>{item}</Iptc4xmpCore:AltTextAccessibility>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
"""


# ------------------------------------------------------------------------------------------ tables


def table(rows: Iterable[tuple[str, str, float | None]]) -> bytes:
    """Return rows of image, alternative text and confidence as CSV in UTF-8.

    A cell that a spreadsheet would compute as a formula gets a quote in front.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for image, caption, confidence in rows:
        shown = "" if confidence is None else f"{confidence:.4f}"
        writer.writerow([_no_formula(image), _no_formula(caption), shown])
    return text.getvalue().encode(errors="backslashreplace")


def check_table(file: Path) -> None:
    """Check that the table of an earlier run, or nothing, would be replaced.

    Raises:
        CaptionerError: The file has another heading than `table` writes, or cannot be read.
    """
    try:
        with file.open("rb") as content:
            heading = content.readline()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise CaptionerError(f"{file} cannot be read ({error.strerror})") from None
    if heading.rstrip() != ",".join(_COLUMNS).encode():
        raise CaptionerError(
            f"{file} is no table of captioner, so it is left as it is; choose another --output"
        )


def _no_formula(cell: str) -> str:
    return f"'{cell}" if cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


# -------------------------------------------------------------------------------------- HTML pages


# Elements whose content is text; of these, HTMLParser knows none in some versions of Python.
_PLAIN_TEXT = frozenset(("textarea", "title", "xmp", "iframe", "noembed", "noframes"))
_LABELS = ("alt", "aria-label", "aria-labelledby")  # attributes that give an image a text


@dataclass(frozen=True)
class _Tag:
    """An `img` tag without an alternative text."""

    start: int  # offset in the page's text
    text: str
    image: Path


class Page(HTMLParser):
    """An HTML page whose images lack alternative texts.

    Images with a text keep it, be it an ARIA label; those that are marked as decoration or hidden
    from screen readers, on other hosts or in `data:` addresses are left alone. The rest of the page
    stays as it is, byte by byte.

    Args:
        file: The page; addresses of images are relative to its folder, or to its `base`.

    Raises:
        CaptionerError: The page cannot be read.
    """

    def __init__(self, file: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.file = file
        try:
            content = file.read_bytes()
        except OSError as error:
            raise CaptionerError(f"{file}: cannot be read ({error.strerror})") from None
        self._text, self._encoding = _decode(content)
        self._lines = [0, *(match.end() for match in re.finditer("\n", self._text))]
        self._tags: list[_Tag] = []
        self.elsewhere = 0  # images whose bytes are not in a local file
        self._base: SplitResult | None = None  # address of the page's first `base`
        self.feed(self._text)
        self.close()

    @property
    def images(self) -> list[Path]:
        """The images to caption, each once, in the page's order."""
        return list(dict.fromkeys(tag.image for tag in self._tags))

    def filled(self, texts: Mapping[Path, str]) -> bytes:
        """Return the page with these alternative texts, by the image's path."""
        pieces, end = [], 0
        for tag in self._tags:
            if not texts.get(tag.image):
                continue
            pieces += [self._text[end : tag.start], _with_alt(tag.text, texts[tag.image])]
            end = tag.start + len(tag.text)
        pieces.append(self._text[end:])
        return "".join(pieces).encode(self._encoding, errors="xmlcharrefreplace")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _PLAIN_TEXT:
            self.set_cdata_mode(tag)
        values = dict(reversed(attrs))  # if an attribute is given twice, the first one counts
        if tag == "base" and self._base is None and values.get("href"):
            with contextlib.suppress(ValueError):
                self._base = urlsplit((values["href"] or "").strip())
        if tag != "img":
            return
        source = (values.get("src") or "").strip()
        if not source or any((values.get(name) or "").strip() for name in _LABELS):
            return
        role = (values.get("role") or "").lower().split()[:1]
        hidden = (values.get("aria-hidden") or "").strip().lower() == "true"
        if hidden or role in (["presentation"], ["none"]):
            return
        try:
            parts = urlsplit(source)
        except ValueError:
            return
        base = self._base or urlsplit("")
        if parts.scheme or parts.netloc or base.scheme or base.netloc:
            self.elsewhere += 1
            return
        path = unquote(posixpath.join(posixpath.dirname(base.path), parts.path)).lstrip("/")
        line, column = self.getpos()
        text = self.get_starttag_text()
        if parts.path and path and text:
            start = self._lines[line - 1] + column
            self._tags.append(_Tag(start, text, self.file.parent / path))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("base", "img"):
            self.handle_starttag(tag, attrs)


_ATTRIBUTE = re.compile(r"""\s+([^\s=>/"']+)(?:\s*=\s*(?:"[^"]*"|'[^']*'|[^\s>"']+)?)?""")


def _with_alt(tag: str, text: str) -> str:
    """Return an `img` tag with `alt` in front of its other attributes, without an empty one."""
    head, rest = tag[: len("<img")], tag[len("<img") :]
    rest = _ATTRIBUTE.sub(lambda found: "" if found[1].lower() == "alt" else found[0], rest)
    return f'{head} alt="{html.escape(text)}"{rest}'


def _decode(content: bytes) -> tuple[str, str]:
    """Return a page's text and its encoding: UTF-8, else the one that it declares, else Latin-1.

    A byte order mark of UTF-16, as Windows writes it, counts more than a declaration.
    """
    declared = re.search(rb"""charset\s*=\s*["']?([\w-]+)""", content[:2048])
    encodings = ["utf-8", declared[1].decode("ascii") if declared else "latin-1"]
    marks = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
    for encoding in [*filter(None, [marks.get(content[:2])]), *encodings]:
        try:
            return content.decode(encoding), encoding
        except (LookupError, UnicodeError):  # the codec "undefined" raises a bare UnicodeError
            continue
    return content.decode("latin-1"), "latin-1"
