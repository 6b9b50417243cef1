"""The report of an evaluation: one HTML file with its figures and example images."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from captioner.visualization.page import document, explorable, resource, viewer_content
from captioner.visualization.style import OverlayStyle

if TYPE_CHECKING:
    from captioner.types import Caption

IMAGE_SIDE_PX = 640  # of the images in a report


@dataclass(frozen=True)
class ReportedImage:
    """An image of the report: its caption with maps, its references, its scores by metric."""

    name: str
    image: Image.Image
    caption: Caption
    references: Sequence[str]
    scores: Mapping[str, float]


def report_page(
    tables: Iterable[tuple[str, Sequence[str], Sequence[Sequence[str]]]],
    examples: Mapping[str, Sequence[ReportedImage]],
    *,
    title: str,
) -> str:
    """Return one HTML file without a network address: tables, and images with their maps.

    Args:
        tables: Title, names of the columns and rows of each.
        examples: Images to show under each heading, such as the best and the worst.
    """
    sections = [f"<h1>{html.escape(title)}</h1>\n<main>"]
    for heading, head, rows in tables:
        sections.append(f"<h2>{html.escape(heading)}</h2>\n{_table(head, rows)}")
    for heading, images in examples.items():
        articles = "\n".join(map(_example, images))
        sections.append(f'<h2>{html.escape(heading)}</h2>\n<div class="photos">{articles}</div>')
    body = "\n".join([*sections, "</main>"])
    return document(title=title, body=body, css=resource("report.css"), with_viewer=True)


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


def _example(example: ReportedImage) -> str:
    """Return an image of the report with its viewer, scores and references."""
    scores = ", ".join(f"{name} {value:.2f}" for name, value in example.scores.items())
    references = "\n".join(f"<li>{html.escape(text)}</li>" for text in example.references)
    small = example.image.copy()
    small.thumbnail((IMAGE_SIDE_PX, IMAGE_SIDE_PX), Image.Resampling.LANCZOS)
    content = viewer_content([("model", example.caption)], OverlayStyle())
    return (
        f"<article><h3>{html.escape(example.name)}</h3>\n"
        + explorable(small, content)
        + f'\n<p class="about">{scores}</p>\n<ul class="references">\n{references}\n</ul></article>'
    )
