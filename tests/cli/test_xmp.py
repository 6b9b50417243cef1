"""XMP sidecars: texts are added to those of other programs, and not a byte of theirs changes."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from captioner.cli.alt_text import BLANK, merged, save_sidecar
from captioner.errors import CaptionerError

SPACES = {
    "dc": "http://purl.org/dc/elements/1.1/",
    "iptc": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
}
BOTH = ("dc:description", "iptc:AltTextAccessibility")


def texts_in(content: bytes) -> dict[str, list[str | None]]:
    root = ElementTree.fromstring(content)
    return {
        name: [item.text for item in root.findall(f".//{name}/rdf:Alt/rdf:li", SPACES)]
        for name in BOTH
    }


def both(text: str) -> dict[str, list[str]]:
    return {name: [text] for name in BOTH}


def packet(description: str) -> bytes:
    """A sidecar as digiKam writes it, with packet marks, a comment and single quotes."""
    return f"""<?xpacket begin="\ufeff" id='W5M0MpCehiHzreSzNTczkc9d'?>
<!-- <rdf:Description/> -->
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk='XMP Core 4.4.0-Exiv2'>
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
{description}
</rdf:RDF>
</x:xmpmeta>
<?xpacket end='w'?>""".encode()


START = """<rdf:Description rdf:about='a > b' xmlns:xmp="http://ns.adobe.com/xap/1.0/"
  xmlns:d="http://purl.org/dc/elements/1.1/" xmp:Rating="4" """
KEYWORDS = "<d:subject><rdf:Bag><rdf:li>Größe</rdf:li></rdf:Bag></d:subject>"
MINE = (
    '<d:description><rdf:Alt><rdf:li xml:lang="x-default">mine</rdf:li></rdf:Alt></d:description>'
)
EMPTY = "<d:description><rdf:Alt><rdf:li/></rdf:Alt></d:description>"


def test_a_sidecar_holds_description_and_alternative_text() -> None:
    assert texts_in(merged(BLANK, 'dogs & "cats" <3\x07')) == both('dogs & "cats" <3')


@pytest.mark.parametrize(
    ("description", "overwrite", "texts"),
    [
        (f"{START}/>", False, (["A dög"], ["A dög"])),
        (f"{START}>{KEYWORDS}</rdf:Description>", False, (["A dög"], ["A dög"])),
        (f"{START}>{KEYWORDS}{MINE}</rdf:Description>", False, (["mine"], ["A dög"])),
        (f"{START}>{MINE}{KEYWORDS}</rdf:Description>", True, (["A dög"], ["A dög"])),
        (f"{START}>{EMPTY}{KEYWORDS}</rdf:Description>", False, (["A dög"], ["A dög"])),
        (f"{START}>{KEYWORDS}</rdf:Description>{START}>{MINE}</rdf:Description>", False,
         (["mine"], ["A dög"])),
    ],
    ids=["no content", "keywords", "a description", "overwritten", "empty", "two"],
)  # fmt: skip
def test_texts_are_added_and_all_else_stays_byte_for_byte(
    description: str, overwrite: bool, texts: tuple[list[str], list[str]]
) -> None:
    before = packet(description)
    after = merged(before, "A dög", overwrite=overwrite)
    assert texts_in(after) == dict(zip(BOTH, texts, strict=True))
    assert merged(after, "A dög") == after, "a second time changes nothing"
    left, right = before.index(b"xmp:Rating"), before.index(b"</rdf:RDF>")
    assert after.startswith(before[:left])
    assert after.endswith(before[right:])
    for part in (KEYWORDS, 'xmp:Rating="4"'):
        assert after.count(part.encode()) == before.count(part.encode())


def test_a_sidecar_of_another_program_is_changed_only_when_asked(tmp_path: Path) -> None:
    file = tmp_path / "dog.jpg.xmp"
    file.write_bytes(packet(f"{START}/>"))
    with pytest.raises(CaptionerError, match="--xmp-merge"):
        save_sidecar(file, "A dog")
    assert save_sidecar(file, "A dog", merge=True)
    assert not save_sidecar(file, "A cat", merge=True), "it has both texts"
    assert texts_in(file.read_bytes()) == both("A dog")
    assert save_sidecar(file, "A cat", merge=True, overwrite=True)
    assert texts_in(file.read_bytes()) == both("A cat")
    file.write_bytes(b"<x>mine</x>")
    with pytest.raises(CaptionerError, match="no rdf:RDF"):
        save_sidecar(file, "A dog", merge=True)
