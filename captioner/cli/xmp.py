"""XMP sidecars: a photo's description and alternative text in a file next to it.

Sidecars of other programs are parsed by expat, which says where each element stands. So texts are
added to them with all else left as it is, byte for byte.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
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

BLANK = f"""<?xml version="1.0" encoding="UTF-8"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="{_TOOLKIT}">
 <rdf:RDF xmlns:rdf="{_RDF}">
  <rdf:Description rdf:about=""/>
 </rdf:RDF>
</x:xmpmeta>
""".encode()  # a sidecar of captioner without texts

SidecarName = Literal["append", "replace"]


def sidecar_of(photo: Path, name: SidecarName = "append") -> Path:
    """Return the file of a photo's sidecar.

    Args:
        name: `append` is dog.jpg.xmp, which digiKam and darktable read; `replace` is dog.xmp, which
            Lightroom reads.
    """
    return photo.with_suffix(".xmp") if name == "replace" else photo.with_name(f"{photo.name}.xmp")


def save_sidecar(file: Path, text: str, *, merge: bool = False, overwrite: bool = False) -> bool:
    """Write a text as `dc:description` and as IPTC's `AltTextAccessibility` into a sidecar.

    Args:
        file: The sidecar; one that captioner wrote is replaced.
        merge: Add the texts to a sidecar of another program, where it lacks them.
        overwrite: With `merge`, replace its texts, too.

    Returns:
        Whether it was written; not if it has both texts already.

    Raises:
        CaptionerError: It is of another program and `merge` is false, or cannot be read or written.
    """
    try:
        found = file.read_bytes() if file.exists() else BLANK
    except OSError as error:
        raise CaptionerError(f"{file} cannot be read ({error.strerror})") from None
    if f'x:xmptk="{_TOOLKIT}"'.encode() in found:
        save_bytes(merged(BLANK, text), file)
        return True
    if not merge:
        raise CaptionerError(
            f"{file} was written by another program, so it is left as it is; --xmp-merge adds "
            "the texts to it"
        )
    try:
        content = merged(found, text, overwrite=overwrite)
    except ValueError as error:
        raise CaptionerError(f"{file}: {error}, so it is left as it is") from None
    if content != found:
        save_bytes(content, file)
    return content != found


def _property(name: str, text: str) -> str:
    """Return one of _PROPERTIES as an element that declares its own namespaces."""
    prefix = name.partition(":")[0]
    allowed = "".join(c for c in text if c.isprintable())  # XML has no control characters
    return (
        f'<{name} xmlns:{prefix}="{_PROPERTIES[name]}" xmlns:rdf="{_RDF}"><rdf:Alt>'
        f'<rdf:li xml:lang="x-default">{escape(allowed)}</rdf:li></rdf:Alt></{name}>'
    )


def merged(content: bytes, text: str, *, overwrite: bool = False) -> bytes:
    """Return a sidecar with the description and the alternative text that it lacks.

    Args:
        overwrite: Replace those that it has, too.

    Raises:
        ValueError: It is no XMP; the message is the end of a sentence.
    """
    description = f"{_RDF} Description"
    elements = _elements(content)
    new, changes = "", []  # first byte, end, and what comes instead
    for name, namespace in _PROPERTIES.items():
        full_name = f"{namespace} {name.partition(':')[2]}"
        found = [e for e in elements if (e.name, e.parent) == (full_name, description)]
        if not found:
            new += _property(name, text)
        elif overwrite or not found[0].text.strip():
            changes.append((found[0].start, found[0].end, _property(name, text)))
    if new:
        first = next((each for each in elements if each.name == description), None)
        if first is None:
            raise ValueError("holds no rdf:Description")
        tag = content[first.start : first.inside].decode()
        if tag.endswith("/>"):
            name = tag[1:].replace("/", " ").split()[0]
            changes.append((first.start, first.end, f"{tag[:-2].rstrip()}>{new}</{name}>"))
        else:
            changes.append((first.inside, first.inside, new))
    for start, end, replacement in sorted(changes, reverse=True):
        content = content[:start] + replacement.encode() + content[end:]
    return content


_TAG = re.compile(rb"""<(?:"[^"]*"|'[^']*'|[^'">])*>""")  # a quoted `>` does not end it


@dataclass
class _Element:
    """An element of a sidecar, with offsets of bytes."""

    name: str  # and `parent`: the namespace, a blank, the local name
    parent: str
    start: int
    inside: int  # the end of the start tag
    end: int = 0
    text: str = ""  # also of the elements in it


def _elements(content: bytes) -> list[_Element]:
    """Return the elements of a sidecar, in the order of their start tags."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ValueError("is in UTF-16, not UTF-8")
    elements: list[_Element] = []
    opened: list[_Element] = []
    parser = expat.ParserCreate(namespace_separator=" ")

    def tag_end() -> int:
        found = _TAG.match(content, parser.CurrentByteIndex)
        return found.end() if found else len(content)

    def start_element(name: str, _: object) -> None:
        parent = opened[-1].name if opened else ""
        opened.append(_Element(name, parent, parser.CurrentByteIndex, tag_end()))
        elements.append(opened[-1])

    def end_element(_: str) -> None:
        element = opened.pop()
        is_empty = content[: element.inside].endswith(b"/>")
        element.end = element.inside if is_empty else tag_end()

    def character_data(data: str) -> None:
        for element in opened:
            element.text += data

    parser.StartElementHandler = start_element
    parser.EndElementHandler = end_element
    parser.CharacterDataHandler = character_data
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise ValueError(f"is no XML ({error})") from None
    return elements
