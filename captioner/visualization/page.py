"""Pages of one file that loads nothing else: a captioned image, the report of an evaluation."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files

from PIL import Image

from captioner.visualization import style as styles
from captioner.visualization.caption import Caption
from captioner.visualization.overlay import resize_captioned, scaled_size
from captioner.visualization.sheet import KEY, NOTES, Named
from captioner.visualization.style import OverlayStyle, Style
from captioner.visualization.typography import one_line

LONGEST_SIDE_PX = 1600  # of the image in a page; the viewer paints no finer either
REPORT_SIDE_PX = 640  # of the images in a report


def caption_page(
    image: Image.Image,
    captions: Named,
    *,
    name: str,
    style: Style = None,
    layer: int | None = None,
    head: int | None = None,
) -> str:
    """Return one HTML file: the image, its caption, and the attention map of each word.

    The image is in it as a JPEG of at most LONGEST_SIDE_PX on its longer side.

    Args:
        captions: A name and a caption, with all heads, for each model; the reader switches.
        style: How attention is shown at first; the reader can change it.
        layer: Layer whose maps are shown first, from 1; None is the last.
        head: Head whose maps are shown first, from 1; None is the mean of all.
    """
    size = scaled_size(image.size, min(1.0, LONGEST_SIDE_PX / max(image.size)))
    shown = resize_captioned(image, captions[0][1].geometry, size)
    viewer = _explorable(shown, captions, OverlayStyle.of(style), layer, head)
    here = "" if size == image.size else f", here {size[0]} × {size[1]}"
    about = f"Photo of {image.width} × {image.height} pixels{here}"
    models = "Model: " + ", ".join(model for model, _ in captions)
    body = (
        f"<h1>{html.escape(one_line(name))}</h1>\n"
        f"<main>{viewer}</main>\n"
        f"<footer>{about}. {html.escape(models)}. A map shows how much the model attended to each "
        "place before it wrote the word, in multiples of attention that is spread evenly. The gate "
        "β says how much the word draws on the picture. Made with captioner.</footer>"
    )
    return _document(title=captions[0][1].text or name, body=body)


def report_page(
    tables: Iterable[tuple[str, Sequence[str], Sequence[Sequence[str]]]],
    examples: Mapping[str, Sequence[str]],
    *,
    title: str,
) -> str:
    """Return one HTML file: tables (title, columns, rows), and by heading `report_example`s."""
    sections = [f"<h1>{html.escape(title)}</h1>\n<main>"]
    for heading, head, rows in tables:
        sections.append(f"<h2>{html.escape(heading)}</h2>\n{_table(head, rows)}")
    for heading, images in examples.items():
        articles = "\n".join(images)
        sections.append(f'<h2>{html.escape(heading)}</h2>\n<div class="photos">{articles}</div>')
    body = "\n".join([*sections, "</main>"])
    return _document(title=title, body=body, css=_resource("report.css"))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table, whose first column names the rows."""
    heads = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
    body = "\n".join(
        f'<tr><th scope="row">{html.escape(name)}</th>'
        + "".join(f"<td>{html.escape(value)}</td>" for value in values)
        + "</tr>"
        for name, *values in rows
    )
    thead = f"<thead><tr>{heads}</tr></thead>\n" if any(head) else ""
    return f'<div class="scroll"><table>\n{thead}<tbody>\n{body}\n</tbody></table></div>'


def report_example(
    name: str,
    image: Image.Image,
    caption: Caption,
    references: Sequence[str],
    scores: Mapping[str, float],
) -> str:
    """Return an image of the report with its viewer, scores and references."""
    about = ", ".join(f"{metric} {value:.2f}" for metric, value in scores.items())
    items = "\n".join(f"<li>{html.escape(text)}</li>" for text in references)
    small = image.copy()
    small.thumbnail((REPORT_SIDE_PX, REPORT_SIDE_PX), Image.Resampling.LANCZOS)
    return (
        f"<article><h3>{html.escape(name)}</h3>\n"
        + _explorable(small, [("model", caption)], OverlayStyle())
        + f'\n<p class="about">{about}</p>\n<ul class="references">\n{items}\n</ul></article>'
    )


def viewer_script() -> str:
    """Return the viewer with its style sheet, and what it paints by: tables, constants of style."""
    tables = {name: value for name, value in vars(styles).items() if name.isupper()}
    colours: dict[str, str] = {
        name: bytes(styles.colour_table(name)).hex() for name in styles.COLOUR_MAPS
    }
    painted = {}
    for kind in styles.STYLES:
        paint = styles.paint_of(kind, "viridis")
        if paint.colours is not None and kind != "colour":  # which has those of the chosen map
            colours[kind] = bytes(paint.colours).hex()
        painted[kind] = {
            "base": paint.base,
            "above": paint.colours is not None,  # whether colours; else the photo itself
            "alpha": [round(float(value), 4) for value in paint.alpha],
            "lines": paint.lines,
        }
    tables |= {"styles": painted, "colours": colours}
    tables |= {"key": KEY, "notes": NOTES, "css": _resource("viewer.css")}
    text = json.dumps(tables, ensure_ascii=False, separators=(",", ":"))
    return f"window.captionViewerTables = {text};\n{_resource('viewer.js')}"


def _explorable(
    image: Image.Image,
    captions: Named,
    style: OverlayStyle,
    layer: int | None = None,
    head: int | None = None,
) -> str:
    """Return the part of a document in which the viewer shows an image: see viewer.js."""
    content = {
        "alt": captions[0][1].text,
        "models": [{"name": model, **caption.to_dict(maps=True)} for model, caption in captions],
        "display": {
            "smooth": style.smooth,
            "style": style.kind,
            "colourMap": style.colour_map,
            "opacity": style.opacity,
            "threshold": style.threshold,
            "layer": layer,
            "head": head,
        },
    }
    alt = html.escape(captions[0][1].text)
    values = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&":  # so that no word ends the script element
        values = values.replace(character, f"\\u{ord(character):04x}")
    return (
        f'<div class="captioner"><div class="plain"><img src="{data_url(image)}" alt="{alt}">'
        f"<p>{alt}</p></div></div>\n"
        f'<script type="application/json">{values}</script>\n'
    )


def data_url(image: Image.Image) -> str:
    """Return an image as a data URL of a JPEG."""
    file = io.BytesIO()
    image.save(file, format="JPEG", quality=88, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _document(*, title: str, body: str, css: str = "") -> str:
    """Return an HTML file whose policy lets nothing in but its own style and the viewer."""
    css, script = _resource("page.css") + css, viewer_script() + _resource("page.js")
    style_hash, script_hash = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (css, script)
    )
    return _resource("page.html").format(
        title=html.escape(one_line(title)),
        body=body,
        css=css,
        script=script,
        style_hash=style_hash,
        script_hash=script_hash,
    )


def _resource(name: str) -> str:
    return files("captioner.visualization").joinpath(name).read_text(encoding="utf-8")
