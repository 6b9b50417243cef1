"""XMP sidecars: a photo's description and alternative text in a file next to it.

Sidecars of other programs are parsed by expat, which says where each element stands. So texts are
added to them with all else left as it is, byte for byte.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from xml.parsers import expat
from xml.sax.saxutils import escape

from captioner.errors import CaptionerError
from captioner.files import save_bytes

_TOOLKIT = "captioner"  # in x:xmptk; marks a sidecar that captioner wrote and may replace
_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_PROPERTIES = {
    "dc:description": "http://purl.org/dc/elements/1.1/",
    "Iptc4xmpCore:AltTextAccessibility": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
}

SidecarName = Literal["append", "replace"]


def sidecar_of(photo: Path, name: SidecarName = "append") -> Path:
    """Return the file of a photo's sidecar.

    Args:
        name: `append` is dog.jpg.xmp, which digiKam and darktable read; `replace` is dog.xmp, which
            Lightroom reads.
    """
    return photo.with_suffix(".xmp") if name == "replace" else photo.with_name(f"{photo.name}.xmp")


def save_sidecar(
    file: Path, text: str, *, merge: bool = False, overwrite: bool = False
) -> Path | None:
    """Write a text as `dc:description` and as IPTC's `AltTextAccessibility` into a sidecar.

    Args:
        file: The sidecar; one that captioner wrote is replaced.
        merge: Add the texts to a sidecar of another program, where it lacks them.
        overwrite: With `merge`, replace its texts, too.

    Returns:
        The file; None if it has both texts already, so that nothing was written.

    Raises:
        CaptionerError: It is of another program and `merge` is false, or cannot be read or written.
    """
    found = _read(file)
    content = xmp(text).encode()
    if found is not None and not _is_ours(found):
        if not merge:
            raise CaptionerError(
                f"{file} was written by another program, so it is left as it is; --xmp-merge adds "
                "the texts to it"
            )
        try:
            content = merged(found, text, overwrite=overwrite)
        except ValueError as error:
            raise CaptionerError(f"{file}: {error}, so it is left as it is") from None
        if content == found:
            return None
    save_bytes(content, file)
    return file


def remove_sidecar(file: Path) -> bool:
    """Remove a sidecar that captioner wrote, and return whether there was one.

    Raises:
        CaptionerError: It can be neither read nor removed.
    """
    content = _read(file)
    if content is None or not _is_ours(content):
        return False
    try:
        file.unlink()
    except OSError as error:
        raise CaptionerError(f"{file} cannot be removed ({error.strerror})") from None
    return True


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CaptionerError(f"{file} cannot be read ({error.strerror})") from None


def _is_ours(content: bytes) -> bool:
    return f'x:xmptk="{_TOOLKIT}"'.encode() in content


def xmp(text: str) -> str:
    """Return an XMP packet with a text as description and alternative text."""
    properties = "\n   ".join(_property(name, text) for name in _PROPERTIES)
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="{_TOOLKIT}">
 <rdf:RDF xmlns:rdf="{_RDF}">
  <rdf:Description rdf:about="">
   {properties}
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
"""


def _property(name: str, text: str) -> str:
    """Return one of _PROPERTIES as an element that declares its own namespaces."""
    prefix = name.partition(":")[0]
    allowed = "".join(c for c in text if c.isprintable())  # XML has no control characters
    return (
        f'<{name} xmlns:{prefix}="{_PROPERTIES[name]}" xmlns:rdf="{_RDF}"><rdf:Alt>'
        f'<rdf:li xml:lang="x-default">{escape(allowed)}</rdf:li></rdf:Alt></{name}>'
    )


_TAG = re.compile(rb"""<(?:"[^"]*"|'[^']*'|[^'">])*>""")  # a quoted `>` does not end it


@dataclass
class _Layout:
    """Where the elements of a sidecar stand, as offsets of bytes."""

    inside: int | None = None  # the end of the content of the first description
    empty: tuple[int, int] | None = None  # the first description's tag, if it has no content
    properties: dict[str, tuple[int, int, str]] = field(default_factory=dict)  # and their text


def merged(content: bytes, text: str, *, overwrite: bool = False) -> bytes:
    """Return a sidecar with the description and the alternative text that it lacks.

    Args:
        overwrite: Replace those that it has, too.

    Raises:
        ValueError: It is no XMP; the message is the end of a sentence.
    """
    layout = _layout(content)
    changes: list[tuple[int, int, str]] = []  # first byte, end, and what comes instead
    new = ""
    for name in _PROPERTIES:
        if name not in layout.properties:
            new += _property(name, text)
            continue
        start, end, existing = layout.properties[name]
        if overwrite or not existing.strip():
            changes.append((start, end, _property(name, text)))
    if new and layout.empty:
        start, end = layout.empty
        tag = content[start:end].decode()
        name = tag[1:].replace("/", " ").split()[0]
        changes.append((start, end, f"{tag[:-2].rstrip()}>{new}</{name}>"))
    elif new and layout.inside is not None:
        changes.append((layout.inside, layout.inside, new))
    elif new:
        raise ValueError("holds no rdf:Description")
    for start, end, replacement in sorted(changes, reverse=True):
        content = content[:start] + replacement.encode() + content[end:]
    return content


def _layout(content: bytes) -> _Layout:
    """Find the first description, and the properties that captioner writes."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ValueError("is in UTF-16, not UTF-8")
    names = {f"{uri} {name.partition(':')[2]}": name for name, uri in _PROPERTIES.items()}
    description = f"{_RDF} Description"
    layout = _Layout()
    open_elements: list[tuple[str, int, list[str]]] = []  # their names, first bytes and texts
    parser = expat.ParserCreate(namespace_separator=" ")

    def tag_end(start: int) -> int:
        found = _TAG.match(content, start)
        return found.end() if found else len(content)

    def start_element(name: str, _: object) -> None:
        open_elements.append((name, parser.CurrentByteIndex, []))

    def character_data(data: str) -> None:
        for _, _, texts in open_elements:
            texts.append(data)

    def end_element(name: str) -> None:
        _, start, texts = open_elements.pop()
        start_end = tag_end(start)
        is_empty = content[:start_end].endswith(b"/>")
        position = parser.CurrentByteIndex
        if name in names and open_elements and open_elements[-1][0] == description:
            end = start_end if is_empty else tag_end(position)
            layout.properties[names[name]] = (start, end, "".join(texts))
        nested = any(each == description for each, _, _ in open_elements)
        if name == description and not nested and not (layout.inside or layout.empty):
            if is_empty:
                layout.empty = (start, start_end)
            else:
                layout.inside = position

    parser.StartElementHandler = start_element
    parser.EndElementHandler = end_element
    parser.CharacterDataHandler = character_data
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise ValueError(f"is no XML ({error})") from None
    return layout
