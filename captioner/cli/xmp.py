"""XMP sidecars: a photo's description and alternative text in a file next to it.

Texts are added to sidecars of other programs with all else left as it is, byte for byte.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
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
        is_ours = f'x:xmptk="{_TOOLKIT}"'.encode() in found
        if not (is_ours or merge):
            raise CaptionerError(
                f"{file} was written by another program, so it is left as it is; --xmp-merge adds "
                "the texts to it"
            )
        content = merged(BLANK if is_ours else found, text, overwrite=overwrite)
    except OSError as error:
        raise CaptionerError(f"{file}: cannot be read ({error.strerror})") from None
    except (ValueError, expat.ExpatError) as error:
        raise CaptionerError(f"{file}: is no XMP in UTF-8 ({error}); it is left as it is") from None
    if content != found or is_ours:
        save_bytes(content, file)
    return content != found or is_ours


def merged(content: bytes, text: str, *, overwrite: bool = False) -> bytes:
    """Return a sidecar with the description and the alternative text that it lacks.

    Args:
        overwrite: Replace those that it has, too.

    Raises:
        ValueError, ExpatError: It is no XMP in UTF-8.
    """
    content.decode()
    description = f"{_RDF} Description"
    elements = _elements(content)
    first = next((each for each in elements if each.name == description), None)
    if first is None:
        raise ValueError("it has no rdf:Description")
    new, changes = "", []  # first byte, end, and what comes instead
    for name, namespace in _PROPERTIES.items():
        prefix, local_name = name.split(":")
        key = (f"{namespace} {local_name}", description)
        found = next((each for each in elements if (each.name, each.parent) == key), None)
        allowed = "".join(c for c in text if c.isprintable())  # XML has no control characters
        element = (
            f'<{name} xmlns:{prefix}="{namespace}" xmlns:rdf="{_RDF}"><rdf:Alt>'
            f'<rdf:li xml:lang="x-default">{escape(allowed)}</rdf:li></rdf:Alt></{name}>'
        )
        if found is None:
            new += element
        elif overwrite or not found.text.strip():
            changes.append((found.start, found.end, element))
    tag = content[first.start : first.inside].decode()
    if new and tag.endswith("/>"):
        name = tag[1:-2].split()[0]
        changes.append((first.start, first.end, f"{tag[:-2].rstrip()}>{new}</{name}>"))
    else:
        changes.append((first.inside, first.inside, new))
    for start, end, replacement in sorted(changes, reverse=True):
        content = content[:start] + replacement.encode() + content[end:]
    return content


_START_TAG = re.compile(rb"""<(?:"[^"]*"|'[^']*'|[^'">])*>""")  # a quoted `>` does not end it


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
    elements: list[_Element] = []
    opened: list[_Element] = []
    parser = expat.ParserCreate(namespace_separator=" ")

    def start_element(name: str, _: object) -> None:
        start = parser.CurrentByteIndex
        tag = _START_TAG.match(content, start)
        if tag is None:
            raise ValueError("it has elements in entities")
        opened.append(_Element(name, opened[-1].name if opened else "", start, tag.end()))
        elements.append(opened[-1])

    def end_element(_: str) -> None:
        element = opened.pop()
        is_empty = content[element.start : element.inside].endswith(b"/>")
        end = content.find(b">", parser.CurrentByteIndex) + 1
        element.end = element.inside if is_empty else end

    def character_data(data: str) -> None:
        for element in opened:
            element.text += data

    parser.StartElementHandler = start_element
    parser.EndElementHandler = end_element
    parser.CharacterDataHandler = character_data
    parser.Parse(content, True)
    return elements
