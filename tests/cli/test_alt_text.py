"""What `--write` writes: texts, sidecars, tables and pages."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import tiny
from programs import ProgramResult

from captioner.cli.alt_text import (
    BLANK,
    MAX_LENGTH,
    Page,
    alt_text,
    merged,
    save_sidecar,
    table_row,
)
from captioner.errors import CaptionerError

PAGE = '<img src="photos/one.jpg"><img src="photos/two.png" alt=""><img src="x" alt="mine">'


@pytest.fixture
def folder(photos: list[Path]) -> Path:
    return photos[0].parent


def captions_in(outcome: ProgramResult) -> list[str]:
    return [line["caption"] for line in outcome.json_lines()]


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("a photo of two dogs", "Two dogs"),
        ("this is a black and white picture of a man", "A man"),
        ("a close up of an image of a cat", "A cat"),
        ("this is a bathroom with a sink", "A bathroom with a sink"),
        ("it is raining", "It is raining"),
        ("a man takes a photo of a dog", "A man takes a photo of a dog"),
        ("", ""),
    ],
)
def test_a_photo_of_is_never_written(caption: str, expected: str) -> None:
    assert alt_text(caption) == expected


def test_texts_are_no_longer_than_they_may_be() -> None:
    text = alt_text("a dog and " * 20)
    assert len(text) <= MAX_LENGTH
    assert text.endswith("dog and a…")


def test_texts_for_training_are_written_next_to_photos_and_kept(caption, folder: Path) -> None:
    options = ("--write", "txt", "--prefix", "sks style,", "--suffix", ", night")
    (folder / "two.txt").write_text("mine")
    outcome = caption("photos", *options, "--json")
    assert outcome.code == 0, outcome.stderr
    one, two = captions_in(outcome)
    assert (folder / "one.txt").read_text() == f"sks style, {one}, night\n"
    assert (folder / "two.txt").read_text() == "mine"
    assert "photos/two.txt: has a text already, so" in outcome.stderr, "and not one.txt"
    assert "photos/two.txt: has a text already, so" in caption("photos", *options).stderr
    (folder / "two.txt").unlink()
    (folder / "two.txt").mkdir()  # cannot be read
    assert "photos/two.txt: has a text already, so" in caption("photos", *options).stderr
    (folder / "two.txt").rmdir()
    (folder / "two.jpg").write_bytes((folder / "two.png").read_bytes())
    again = caption("photos", "--write", "txt", "--suffix", "x", "--overwrite")
    assert again.code == 1
    assert "two.png: two.txt is that of two.jpg, too" in again.stderr
    assert (folder / "two.txt").read_text() == f"{two} x\n"


def test_sidecars_are_written_next_to_photos_and_those_of_others_are_kept(
    caption, folder: Path
) -> None:
    (folder / "two.png.xmp").write_text("<x:xmpmeta x:xmptk='another program'/>")
    outcome = caption("photos", "--write", "xmp")
    assert outcome.code == 1
    assert "two.png.xmp was written by another program" in outcome.stderr
    assert "--xmp-merge" in outcome.stderr
    assert (folder / "two.png.xmp").read_text() == "<x:xmpmeta x:xmptk='another program'/>"
    assert "AltTextAccessibility" in (folder / "one.jpg.xmp").read_text()
    assert outcome.stdout.splitlines()[0].endswith(" -> photos/one.jpg.xmp")
    again = caption("photos", "--write", "xmp,txt", "--xmp-merge", "--overwrite")
    assert "has a text already" not in again.stderr
    assert (folder / "two.txt").exists()
    (folder / "two.png.xmp").write_text("<x:xmpmeta x:xmptk='another program'/>")
    (folder / "two.txt").unlink()
    assert caption("photos", "--write", "xmp,txt").code == 1
    assert (folder / "two.txt").exists(), "the sidecar alone was refused"
    assert caption("photos", "--write", "xmp", "--xmp-name", "replace").code == 0
    assert (folder / "two.xmp").exists()


def test_the_table_can_be_read_as_a_data_set_from_where_it_lies(caption, folder: Path) -> None:
    names = ["@user.jpg", "+1.jpg", "=a.jpg", "-b.jpg", "é, ü.jpg"]
    for number, name in enumerate(names):
        tiny.photo(number)[0].save(folder / name)
    outcome = caption("photos", "--write", "csv", "--output", "out/deeper", "--json")
    assert outcome.code == 0, outcome.stderr
    split = tiny.read_split(
        format="table", root=str(folder.parent / "out/deeper/captions.csv"), split="all"
    )
    assert not split.missing
    expected = dict(
        zip(
            sorted([*names, "one.jpg", "two.png"]),
            (text.capitalize() for text in captions_in(outcome)),
            strict=True,
        )
    )
    assert {Path(str(each.path)).name: each.captions[0] for each in split.images} == expected
    table = folder.parent / "out/deeper/captions.csv"
    content = table.read_bytes().replace(b"\n", b"\r\n")  # as a spreadsheet saves it
    table.write_bytes(content.replace(b"one.jpg,", b"one.jpg,Mine: "))
    options = ("--write", "csv", "--output", "out/deeper")
    assert "photos/one.jpg: has a text already" in caption("photos/one.jpg", *options).stderr
    assert table.read_bytes() == content.replace(b"one.jpg,", b"one.jpg,Mine: ").replace(b"\r", b"")
    assert caption("photos", *options, "--overwrite").code == 0
    assert table.read_bytes() == content.replace(b"\r", b"")
    heading, *rows = table.read_text().splitlines()
    edited = [f"\ufeff{heading},notes", *(f"{row},fine" for row in rows[1:])]
    table.write_text("\n".join(edited))
    assert caption("photos", *options).code == 0
    *kept, new = table.read_text().splitlines()
    assert kept == [line.removeprefix("\ufeff") for line in edited]
    assert new == f"{rows[0]},"
    table.write_bytes("image,caption,confidence\na.jpg,Café,0.5\n".encode("cp1252"))
    assert "commas and in UTF-8" in caption("photos", *options).sentence()


def test_no_cell_of_the_table_is_a_formula(tmp_path: Path) -> None:
    assert table_row(tmp_path / "=1.jpg", "=1+1", 0.5, tmp_path) == ["./=1.jpg", " =1+1", "0.5000"]
    assert table_row(tmp_path / "a/b.jpg", "A dog", None, tmp_path) == ["a/b.jpg", "A dog", ""]


def test_pages_are_copied_and_never_changed(caption, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(PAGE)
    assert caption("page.html", "--write", "html").code == 0
    assert file.read_text() == PAGE
    copy = (tmp_path / "page.alt.html").read_text()
    assert copy.count('alt="') == 3
    (tmp_path / "page.alt.html").write_text(f"{copy}<!-- corrected -->")
    assert "lacks" not in caption("page.html", "--write", "html").stderr
    added = '<img src="%c3%b6&amp;(1).png">'
    tiny.photo(1)[0].save(tmp_path / "ö&(1).png")
    file.write_text(PAGE + added)
    lacking = caption("page.html", "--write", "html").stderr
    assert "page.alt.html: lacks ö&(1).png, which page" in lacking
    (tmp_path / "page.alt.html").write_text(f"{copy}{added}<!-- corrected -->")
    assert "lacks" not in caption("page.html", "--write", "html").stderr
    file.write_text(PAGE)
    again = caption("page.html", "page.alt.html", "--write", "html").stderr
    assert "page.alt.html: has a text already" in again
    assert "page.alt.html: passed over, as it is the copy of page.html" in again
    assert (tmp_path / "page.alt.html").read_text().endswith("<!-- corrected -->")
    assert caption("page.html", "--write", "html", "--overwrite").code == 0
    assert (tmp_path / "page.alt.html").read_text() == copy
    assert caption("page.html", "--write", "html", "--output", ".").code in (1, 2)
    (tmp_path / "zero.html").write_text('<img src="b%00.jpg">')
    outcome = caption("zero.html", "--write", "html", "--output", "out", "--resume")
    assert (outcome.code, "Traceback" in outcome.stderr) == (1, False)
    assert file.read_text() == PAGE
    (tmp_path / "blog").mkdir()
    (tmp_path / "blog" / "page.html").write_text(PAGE.replace("photos/", "../photos/"))
    assert caption("page.html", "blog/page.html", "--write", "html", "--output", "site").code == 0
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.glob("site/**/*.html")} == {
        "site/page.html",
        "site/blog/page.html",
    }
    (tmp_path / "blog" / "page.alt.html").mkdir()
    assert "page.alt.html: has a text" in caption("blog/page.html", "--write", "html").stderr
    into = ("--write", "html", "--output", "blog", "--overwrite")  # would replace the other page
    refused = caption("page.html", "blog/page.html", *into)
    assert refused.code == 1
    assert "blog/page.html: would be replaced" in refused.stderr
    assert "../photos/" in (tmp_path / "blog" / "page.html").read_text()


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
    assert save_sidecar(file, "A dog", merge=True)
    assert not save_sidecar(file, "A cat", merge=True), "it has both texts"
    assert texts_in(file.read_bytes()) == both("A dog")
    assert save_sidecar(file, "A cat", merge=True, overwrite=True)
    assert texts_in(file.read_bytes()) == both("A cat")
    size = file.stat().st_size
    assert save_sidecar(file, "A cow", merge=True, overwrite=True)
    assert file.stat().st_size == size, "what is replaced leaves nothing behind"
    ours = tmp_path / "ours.xmp"
    assert save_sidecar(ours, "A dog")
    assert not save_sidecar(ours, "A cat"), "somebody may have corrected it"
    assert save_sidecar(ours, "A cat", overwrite=True)
    assert texts_in(ours.read_bytes()) == both("A cat")
    file.write_bytes(b"<x>mine</x>")
    with pytest.raises(CaptionerError, match="no rdf:RDF"):
        save_sidecar(file, "A dog", merge=True)


MIXED_PAGE = """<!DOCTYPE html>\r
<!-- <img src="comment.jpg"> --><script>var s = '<img src="script.jpg">';</script>
<IMG SRC='photos/one.jpg'   ALT=''  width=3><img alt src="photos/two.png"/>
<img src="photos/one.jpg" alt="mine" title="a > b"><img src="https://elsewhere/x.jpg">
<img title='alt="no"' src="photos/one.jpg?size=2">Größe
"""


def page_of(folder: Path, text: str, name: str = "page.html", **options: Path) -> Page:
    (folder / name).write_text(text, encoding="utf-8")
    return Page(folder / name, **options)


def test_only_missing_texts_of_a_page_are_filled_in(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_bytes(MIXED_PAGE.encode())
    page = Page(file)
    assert page.images == [tmp_path / "photos/one.jpg", tmp_path / "photos/two.png"]
    assert (page.elsewhere, page.empty) == (1, 2)
    filled = page.filled({tmp_path / "photos/one.jpg": 'A "dog"'}).decode()
    text = 'alt="A &quot;dog&quot;"'
    expected = MIXED_PAGE.replace(
        "<IMG SRC='photos/one.jpg'   ALT=''  width=3>",
        f"<IMG {text} SRC='photos/one.jpg'  width=3>",
    ).replace("<img title='alt=\"no\"'", f"<img {text} title='alt=\"no\"'")
    assert filled == expected


@pytest.mark.parametrize("alt", ["alt", "alt=", "ALT = ", "alt=''"])
def test_an_empty_alt_leaves_nothing_behind(tmp_path: Path, alt: str) -> None:
    page = page_of(tmp_path, f"<img src=a.jpg {alt}>")
    assert page.filled({tmp_path / "a.jpg": "A dog"}) == b'<img alt="A dog" src=a.jpg>'


@pytest.mark.parametrize(
    ("attribute", "is_filled"),
    [
        ("role=presentation", False),
        ("role role=presentation", True),  # the first one counts
        ('aria-hidden="true"', False),
        ('aria-hidden="false"', True),
        ('aria-label="my dog"', False),
        ("aria-labelledby=caption", False),
    ],
)
def test_decoration_and_labelled_images_are_left_alone(
    tmp_path: Path, attribute: str, is_filled: bool
) -> None:
    assert bool(page_of(tmp_path, f"<img {attribute} src=a.jpg>").images) == is_filled


@pytest.mark.parametrize(
    "tag",
    [
        '<img src="data:image/gif;base64,R0" data-src="a.jpg">',
        '<img srcset="a.jpg 1x, b.jpg">',
        '<img src="x.gif" data-original="a.jpg">',
        '<img src="data:," data-srcset="a.jpg 1x">',
    ],
)
def test_an_image_without_a_plain_src_is_found(tmp_path: Path, tag: str) -> None:
    filled = page_of(tmp_path, tag).filled({tmp_path / "a.jpg": "A dog"}).decode()
    assert filled == tag.replace("<img", '<img alt="A dog"')


def test_an_address_from_the_root_begins_at_the_site_root_or_a_folder_above(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for place in ("blog", "img", "other/img"):
        (site / place).mkdir(parents=True)
    (site / "img/a.jpg").touch()
    tag = '<img src="/img/a.jpg"><img src="/img/none.jpg">'
    assert page_of(site / "blog", tag).images == [site / "img/a.jpg", site / "blog/img/none.jpg"]
    rooted = page_of(site / "blog", tag, site_root=site / "other")
    assert rooted.images == [site / "other/img/a.jpg", site / "other/img/none.jpg"]


def test_a_relative_address_begins_at_the_base_of_the_page(tmp_path: Path) -> None:
    tags = '<img src="a.jpg"><img src="/b.jpg"><img src="data:x"><img src="//c.org/d.jpg">'
    for base, images, elsewhere in (
        ("../img/", ["../img/a.jpg", "b.jpg"], 2),
        ("./", ["a.jpg", "b.jpg"], 2),
        ("https://elsewhere.org/img/", [], 4),
    ):
        page = page_of(tmp_path, f'<base href="{base}"><base href="no/">{tags}')
        assert (page.images, page.elsewhere) == ([tmp_path / i for i in images], elsewhere)


MARKDOWN = """# Dogs ![mine](a.jpg)
![](a.jpg) and ![ ](<img/my dog.jpg> "title") ![](img/b_(1).jpg)
![](https://example.org/x.jpg) \\![](a.jpg) `![](a.jpg)`
<img src="a.jpg"> ``<b>`` <img src="b.jpg" alt="mine">

```html
<img src="a.jpg"> ![](a.jpg)
```

"""


def test_images_of_markdown_without_a_text_are_filled_in(tmp_path: Path) -> None:
    page = page_of(tmp_path, MARKDOWN, "README.md")
    assert page.images == [tmp_path / name for name in ["a.jpg", "img/my dog.jpg", "img/b_(1).jpg"]]
    assert page.elsewhere == 1
    texts = dict.fromkeys(page.images, "A [dog]")
    expected = (
        MARKDOWN.replace("\n![](a.jpg)", "\n![A \\[dog\\]](a.jpg)")
        .replace("![ ](<", "![A \\[dog\\]](<")
        .replace("![](img", "![A \\[dog\\]](img")
        .replace('\n<img src="a.jpg"> ``', '\n<img alt="A [dog]" src="a.jpg"> ``')
    )
    assert page.filled(texts).decode() == expected
