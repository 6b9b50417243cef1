"""XMP sidecars: a photo's description and alternative text in a file next to it.

Texts are added to sidecars of other programs with all else left as it is, byte for byte.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from xml.etree import ElementTree
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
    except (ValueError, ElementTree.ParseError) as error:
        raise CaptionerError(f"{file}: is no XMP in UTF-8 ({error}); it is left as it is") from None
    if content != found or is_ours:
        save_bytes(content, file)
    return content != found or is_ours


def merged(content: bytes, text: str, *, overwrite: bool = False) -> bytes:
    """Return a sidecar with the description and the alternative text that it lacks.

    They come into an `rdf:Description` of their own, at the end.

    Args:
        overwrite: Replace those that it has, too.

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
        ends = [match.start() for match in re.finditer(rb"</([\w.-]+:)?RDF\s*>", content)]
        if not ends:
            raise ValueError("it has no rdf:RDF with content")
        start = f'<rdf:Description rdf:about="" xmlns:rdf="{_RDF}">'
        description = f"{start}{elements}</rdf:Description>\n".encode()
        content = content[: ends[-1]] + description + content[ends[-1] :]
    return content
