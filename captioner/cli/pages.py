"""Pages of HTML and Markdown: their images without an alternative text, and filling it in."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from captioner.errors import CaptionerError

MARKDOWN_SUFFIXES = (".md", ".markdown")
_LABELS = ("alt", "aria-label", "aria-labelledby")  # attributes that give an image a text
# Attributes from which scripts load images when they are scrolled to; `src` is a placeholder then.
_LAZY = ("data-src", "data-lazy-src", "data-original", "data-lazy", "data-url")
_SETS = ("srcset", "data-srcset", "data-lazy-srcset")


# An image without a text: its offset, its tag or Markdown's `![]`, its addresses, the best first.
_ImageTag: TypeAlias = tuple[int, str, list[str]]


class Page:
    """A page of HTML or Markdown whose images lack alternative texts.

    Images with a text keep it, be it an ARIA label. Those that are marked as decoration, or hidden
    from screen readers, are left alone. The rest of the page stays as it is, byte by byte.

    Args:
        file: The page.
        site_root: Folder in which addresses that begin with `/` begin. None searches their files
            in the page's folder and those above it.

    Attributes:
        elsewhere: Number of images whose bytes are in no local file.

    Raises:
        CaptionerError: The page cannot be read.
    """

    def __init__(self, file: Path, site_root: Path | None = None) -> None:
        self.file = file
        try:
            content = file.read_bytes()
        except OSError as error:
            raise CaptionerError(f"{file}: cannot be read ({error.strerror})") from None
        self._text, self._encoding = _decode(content)
        tags: list[_ImageTag] = []
        markup = self._text
        if file.suffix.lower() in MARKDOWN_SUFFIXES:
            # Blanks instead of code, so that all offsets stay.
            markup = _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), self._text)
            for match in _IMAGE.finditer(markup):
                tag, quoted, plain = match.groups()
                address = quoted or plain
                tags.append((match.start(), tag, [address] if address else []))
        self.elsewhere = 0
        self._gaps: list[tuple[int, str, Path]] = []  # offset, tag and file of each image
        for start, text, sources in sorted([*tags, *_TagReader(markup).tags]):
            found = [_local_file(source, file, site_root) for source in sources]
            local = [path for path in found if path is not None]
            if local:
                image = next((path for path in local if path.is_file()), local[0])
                self._gaps.append((start, text, image))
            elif sources:
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
        pieces.append(self._text[end:])
        return "".join(pieces).encode(self._encoding, errors="xmlcharrefreplace")


class _TagReader(HTMLParser):
    """Collects the `img` tags of a page that lack an alternative text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[_ImageTag] = []
        self._picture: list[str] = []  # addresses of the `source` tags of the picture read
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        # If an attribute is given twice, the first one counts.
        values = {name: (value or "").strip() for name, value in reversed(attrs)}
        if tag == "picture":
            self._picture = []
        elif tag == "source":
            self._picture += _first_addresses(values)
        if tag != "img":
            return
        role = values.get("role", "").lower().split()[:1]
        hidden = values.get("aria-hidden", "").lower() == "true"
        labelled = any(values.get(name) for name in _LABELS)
        text = self.get_starttag_text()
        if labelled or hidden or role in (["presentation"], ["none"]) or not text:
            return
        lazy = [values[name] for name in _LAZY if values.get(name)]
        source = [values["src"]] if values.get("src") else []
        line, column = self.getpos()
        start = self._lines[line - 1] + column
        sources = [*lazy, *source, *_first_addresses(values), *self._picture]
        self.tags.append((start, text, sources))

    def handle_endtag(self, tag: str) -> None:
        if tag == "picture":
            self._picture = []


def _first_addresses(values: Mapping[str, str]) -> list[str]:
    """Return the first address of each attribute that lists one image in several sizes."""
    return [values[name].split()[0].rstrip(",") for name in _SETS if values.get(name)]


def _local_file(source: str, page: Path, site_root: Path | None) -> Path | None:
    """Return the file of an image's address; None for one on another host or in `data:`."""
    try:
        parts = urlsplit(source)
    except ValueError:
        return None
    if parts.scheme or parts.netloc or not parts.path:
        return None
    address = unquote(parts.path)
    path = address.lstrip("/")
    if not address.startswith("/"):
        return page.parent / path
    if site_root is not None:
        return site_root / path
    folders = [page.parent, *page.absolute().parent.parents]
    return next((f / path for f in folders if (f / path).is_file()), page.parent / path)


_ATTRIBUTE = re.compile(r"""\s+([^\s=>/"']+)(?:\s*=\s*(?:"[^"]*"|'[^']*'|[^\s>"']+)?)?""")


def _with_alt(tag: str, text: str) -> str:
    """Return an `img` tag, or Markdown's `![]`, with an alternative text in the place of none."""
    if tag.startswith("!"):
        escaped = re.sub(r"([]\\[])", r"\\\1", text)
        return f"![{escaped}]"
    head, rest = tag[: len("<img")], tag[len("<img") :]
    rest = _ATTRIBUTE.sub(lambda found: "" if found[1].lower() == "alt" else found[0], rest)
    return f'{head} alt="{html.escape(text)}"{rest}'


# Markdown: fenced code and code in a line; an image without a text, as `![](a.jpg)`.
_CODE = re.compile(
    r"^ {0,3}(`{3,}|~{3,})[^\n]*\n.*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)|(?<!`)(`+)(?!`).+?(?<!`)\2(?!`)",
    re.MULTILINE | re.DOTALL,
)
_IMAGE = re.compile(
    r"""(?<!\\)(!\[\s*\])\(\s*(?:<([^>\n]*)>|([^()\s]*(?:\([^()\s]*\)[^()\s]*)*))[^()]*\)"""
)


def _decode(content: bytes) -> tuple[str, str]:
    """Return a page's text and its encoding: UTF-8, else the one that it declares, else Latin-1."""
    declared = re.search(rb"""charset\s*=\s*["']?([\w-]+)""", content[:2048])
    encodings = ["utf-8", declared[1].decode("ascii") if declared else "latin-1"]
    for encoding in encodings:
        try:
            return content.decode(encoding), encoding
        except (LookupError, UnicodeError):  # the codec "undefined" raises a bare UnicodeError
            continue
    return content.decode("latin-1"), "latin-1"
