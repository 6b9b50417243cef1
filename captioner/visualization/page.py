"""Pages to open in a browser: a photo with its caption, and a gallery of such pages.

A page is one file that asks for nothing else: the photo is a data URL, the viewer (viewer.js,
viewer.css) stands inside, and its Content-Security-Policy lets nothing in.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from PIL import Image

from captioner.visualization.arrays import jpeg
from captioner.visualization.look import Look
from captioner.visualization.overlay import resized
from captioner.visualization.typography import one_line

if TYPE_CHECKING:
    from captioner.types import Caption

LONGEST_SIDE_PX = 1600  # of the photo in a page; the viewer paints no finer either
_THUMBNAIL_PX = 480

_PAGE_CSS = """
body { background: #fff; color: #16191d; margin: 0 auto; max-width: 84rem; padding: 1rem;
  font: 1rem/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1rem; font-weight: 400; margin: 0 0 0.8rem; overflow-wrap: anywhere; }
h1, footer, .about { color: #5a6472; }
footer { font-size: 0.85rem; margin-top: 1.5rem; max-width: 60rem; }
a { color: inherit; }
noscript, .plain { display: block; }
.plain img { height: auto; max-width: 100%; }
.gallery { display: grid; gap: 1.2rem; list-style: none; margin: 0; padding: 0;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr)); }
.gallery a { color: #16191d; display: block; text-decoration: none; }
.gallery a:hover .caption, .gallery a:focus-visible .caption { text-decoration: underline; }
.gallery a:focus-visible { outline: 3px solid #1f5fa8; outline-offset: 4px; }
.gallery img { aspect-ratio: 4 / 3; background: #eef0f3; border-radius: 6px; display: block;
  height: auto; object-fit: contain; width: 100%; }
.gallery .caption { display: block; font-weight: 600; margin-top: 0.4rem; }
.gallery .about { display: block; font-size: 0.85rem; overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) {
  body { background: #15181c; color: #eceff3; }
  h1, footer, .about { color: #a3adba; }
  .gallery a { color: #eceff3; }
  .gallery a:focus-visible { outline-color: #8bbcf0; }
  .gallery img { background: #22272e; }
}
"""

# The photo is in the page once: as the picture that is there without scripts too.
_START = """
(function () {
  "use strict";
  window.viewers = Array.from(document.querySelectorAll(".captioner"), function (element) {
    const photo = element.querySelector("img").src;
    const content = JSON.parse(element.nextElementSibling.textContent);
    return new window.CaptionViewer(element, { photo, ...content });
  });
})();
"""


def caption_page(
    photo: Image.Image,
    captions: Sequence[tuple[str, Caption]],
    *,
    name: str,
    look: Look | None = None,
    layer: int | None = None,
    head: int | None = None,
    gallery: str | None = None,
) -> str:
    """One HTML file: the photo, its caption, and for each word where the model looked.

    It works without a network and without a server. The photo is in it as a JPEG of at most
    LONGEST_SIDE_PX on its longer side; a footer says so where it is smaller than the photo.

    Args:
        photo: the upright photo that was captioned.
        captions: a name and a caption for each model; the reader switches between them. Give
            captions with all their heads: layer and head say which are shown first.
        name: of the photo, for the heading.
        look: how attention is shown at first; the reader can change it.
        gallery: address of a page to lead back to.

    Raises:
        ImageError: a photo of another size than a caption's.
        ValueError: no captions.
    """
    if not captions:
        raise ValueError("a page needs a caption")
    look = look or Look()
    scale = min(1.0, LONGEST_SIDE_PX / max(photo.size))
    size = max(1, round(photo.width * scale)), max(1, round(photo.height * scale))
    shown = resized(photo, captions[0][1].geometry, size)
    alt = captions[0][1].text
    content = {
        "alt": alt,
        "models": [{"name": model, **caption.to_dict(maps=True)} for model, caption in captions],
        "look": {
            "smooth": look.smooth,
            "style": look.style,
            "colourMap": look.colour_map,
            "opacity": look.opacity,
            "threshold": look.threshold,
            "layer": layer,
            "head": head,
        },
    }
    about = f"Photo of {photo.width} × {photo.height} pixels"
    if scale < 1:
        about += f", here {size[0]} × {size[1]}"
    models = ", ".join(model for model, _ in captions)
    models = f"Model{'s' if len(captions) > 1 else ''}: {models}"
    back = f'<nav><a href="{html.escape(gallery)}">All photos</a></nav>\n' if gallery else ""
    body = (
        f"{back}<h1>{html.escape(one_line(name))}</h1>\n"
        f"<main>{explorable(shown, content)}</main>\n"
        f"<footer>{about}. {html.escape(models)}. The colours say how much the model looked at a "
        "place before it wrote the word, in multiples of looking everywhere alike. The gate β says "
        "how much the word draws on the picture. Made with captioner.</footer>"
    )
    return document(title=alt or name, body=body, with_viewer=True)


def explorable(photo: Image.Image, content: Mapping[str, Any]) -> str:
    """A photo for the viewer, in a document that is made with it.

    photo: at the size in which it is embedded. content: what the viewer takes beside the photo.
    """
    alt = html.escape(content["alt"])
    return (
        f'<div class="captioner"><div class="plain"><img src="{_data_url(photo)}" alt="{alt}">'
        f"<p>{alt}</p></div></div>\n"
        f'<script type="application/json">{_json(content)}</script>\n'
    )


@dataclass(frozen=True)
class Entry:
    """A photo in a gallery: its name, the address of its page, its caption, a small picture."""

    name: str
    page: str
    caption: str
    thumbnail: str  # a data URL

    @classmethod
    def of(cls, photo: Image.Image, *, name: str, page: str, caption: str) -> Entry:
        small = photo.convert("RGB")
        small.thumbnail((_THUMBNAIL_PX, _THUMBNAIL_PX), Image.Resampling.LANCZOS)
        return cls(name, quote(page), caption, _data_url(small))


def gallery_page(entries: Sequence[Entry]) -> str:
    """One HTML file with small pictures and captions that lead to the pages of their photos."""
    items = "\n".join(
        f'<li><a href="{html.escape(entry.page)}"><img src="{entry.thumbnail}" alt="" '
        f'loading="lazy"><span class="caption">{html.escape(entry.caption or "(no words)")}</span>'
        f'<span class="about">{html.escape(one_line(entry.name))}</span></a></li>'
        for entry in entries
    )
    count = f"{len(entries)} photo{'' if len(entries) == 1 else 's'} with captions"
    body = f'<h1>{count}</h1>\n<main><ul class="gallery">\n{items}\n</ul></main>'
    return document(title=count, body=body)


def document(*, title: str, body: str, css: str = "", with_viewer: bool = False) -> str:
    """A whole HTML file that asks for nothing else; with_viewer: for what `explorable` gives."""
    css = (_resource("viewer.css") if with_viewer else "") + _PAGE_CSS + css
    script = _resource("viewer.js") + _START if with_viewer else ""
    rules = ["default-src 'none'", "img-src data:", f"style-src {_hash(css)}"]
    if script:
        rules.append(f"script-src {_hash(script)}")
    rules += ["base-uri 'none'", "form-action 'none'"]
    scripts = f"\n<script>{script}</script>" if script else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{"; ".join(rules)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        # A picture of nothing, or the browser asks the page's host for one.
        '<link rel="icon" href="data:,">\n'
        f"<title>{html.escape(one_line(title))}</title>\n<style>{css}</style>\n</head>\n"
        f"<body>\n{body}{scripts}\n</body>\n</html>\n"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(content: Mapping[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data_url(photo: Image.Image) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg(photo)).decode()}"


def _resource(name: str) -> str:
    return files("captioner.visualization").joinpath(name).read_text(encoding="utf-8")
