"""Pages of HTML and Markdown: their images without an alternative text, and filling it in."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from captioner.errors import CaptionerError

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
            content = file.read_bytes()
        except OSError as error:
            raise CaptionerError(f"{file}: cannot be read ({error.strerror})") from None
        try:
            self._text, self._encoding = content.decode(), "utf-8"
        except UnicodeDecodeError:  # latin-1 keeps the bytes of every other encoding
            self._text, self._encoding = content.decode("latin-1"), "latin-1"
        markup = self._text
        tags: list[tuple[int, str, str]] = []
        if file.suffix.lower() in (".md", ".markdown"):
            # Blanks instead of code, so that all offsets stay.
            markup = _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), self._text)
            for match in _IMAGE.finditer(markup):
                tag, quoted, plain = match.groups()
                tags.append((match.start(), tag, quoted or plain))
        self.elsewhere = 0  # images whose bytes are in no local file
        self._gaps: list[tuple[int, str, Path]] = []  # offset, tag and file of each image
        for start, tag, address in sorted([*tags, *_TagReader(markup).tags]):
            if image := _local_file(address, file, site_root):
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
    """Collects the `img` tags without an alternative text: offset, tag, address."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[int, str, str]] = []
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "img" or not (text := self.get_starttag_text()):
            return
        # If an attribute is given twice, the first one counts.
        values = {name: (value or "").strip() for name, value in reversed(attrs)}
        role = values.get("role", "").lower().split()[:1]
        hidden = values.get("aria-hidden", "").lower() == "true"
        if hidden or role in (["presentation"], ["none"]) or any(map(values.get, _LABELS)):
            return
        line, column = self.getpos()
        # Where a script loads the image when it is scrolled to, `src` is a placeholder.
        address = values.get("data-src") or values.get("src", "")
        self.tags.append((self._lines[line - 1] + column, text, address))


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


def _with_alt(tag: str, text: str) -> str:
    """Return an `img` tag, or Markdown's `![]`, with an alternative text in the place of none."""
    if tag.startswith("!"):
        escaped = re.sub(r"([]\\[])", r"\\\1", text)
        return f"![{escaped}]"
    head, rest = tag[: len("<img")], tag[len("<img") :]
    rest = _ATTRIBUTE.sub(lambda found: "" if found[1].lower() == "alt" else found[0], rest)
    return f'{head} alt="{html.escape(text)}"{rest}'
