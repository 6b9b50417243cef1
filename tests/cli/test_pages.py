"""Pages of HTML and Markdown: which images lack a text, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from captioner.cli.pages import Page

PAGE = """<!DOCTYPE html>\r
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
    file.write_bytes(PAGE.encode())
    page = Page(file)
    assert page.images == [tmp_path / "photos/one.jpg", tmp_path / "photos/two.png"]
    assert page.elsewhere == 1
    filled = page.filled({tmp_path / "photos/one.jpg": 'A "dog"'}).decode()
    text = 'alt="A &quot;dog&quot;"'
    expected = PAGE.replace(
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


# --------------------------------------------------------------------------------- addresses


def test_an_image_that_a_script_loads_is_at_data_src(tmp_path: Path) -> None:
    tag = '<img src="data:image/gif;base64,R0" data-src="a.jpg">'
    page = page_of(tmp_path, tag)
    filled = page.filled({tmp_path / "a.jpg": "A dog"}).decode()
    assert filled == tag.replace("<img", '<img alt="A dog"')


def test_an_address_from_the_root_begins_at_the_site_root_or_a_folder_above(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for place in ("blog", "img", "other/img"):
        (site / place).mkdir(parents=True)
    (site / "img/a.jpg").touch()
    tag = '<img src="/img/a.jpg"><img src="/img/none.jpg">'
    found = page_of(site / "blog", tag)
    assert found.images == [site / "img/a.jpg", site / "blog/img/none.jpg"]
    rooted = page_of(site / "blog", tag, site_root=site / "other")
    assert rooted.images == [site / "other/img/a.jpg", site / "other/img/none.jpg"]


# --------------------------------------------------------------------------------- Markdown


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
    names = ["a.jpg", "img/my dog.jpg", "img/b_(1).jpg"]
    assert page.images == [tmp_path / name for name in names]
    assert page.elsewhere == 1
    texts = dict.fromkeys(page.images, "A [dog]")
    expected = (
        MARKDOWN.replace("\n![](a.jpg)", "\n![A \\[dog\\]](a.jpg)")
        .replace("![ ](<", "![A \\[dog\\]](<")
        .replace("![](img", "![A \\[dog\\]](img")
        .replace('\n<img src="a.jpg"> ``', '\n<img alt="A [dog]" src="a.jpg"> ``')
    )
    assert page.filled(texts).decode() == expected
