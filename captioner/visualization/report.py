"""The report of an evaluation: one HTML file with its figures and example images."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PIL import Image

from captioner.visualization.page import document, explorable, resource, viewer_content
from captioner.visualization.style import OverlayStyle
from captioner.visualization.vector import figure_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    results: Mapping[str, Any], examples: Mapping[str, Sequence[ReportedImage]], *, title: str
) -> str:
    """Return one HTML file without a network address: figures, distributions, images with maps.

    Args:
        results: The content of results.json as `captioner evaluate` writes it, with its
            statistics, intervals, groups and images, and where they were measured calibration,
            bias, grounding, attention and faithfulness.
        examples: Images to show under each heading, such as the best and the worst.
    """
    sections = [
        f"<h1>{html.escape(title)}</h1>\n<main>",
        "<h2>Scores</h2>",
        _scores(results),
        '<h2>Distributions</h2>\n<div class="plots">',
        _histogram("CIDEr of a photo", [image["scores"]["CIDEr"] for image in results["images"]]),
        _histogram(
            "words in a caption",
            [len(entry["caption"].split()) for entry in results["captions"]],
            integers=True,
        ),
        _faithfulness(results["faithfulness"])
        if results.get("faithfulness", {"num_words": 0})["num_words"]
        else "",
        "</div>",
        "<h2>Captions</h2>",
        _table(
            ["", ""], [[name.replace("_", " "), v] for name, v in results["statistics"].items()]
        ),
    ]
    if "calibration" in results:
        sections += ["<h2>Confidence</h2>", _calibration(results["calibration"])]
    if results.get("bias"):
        sections += ["<h2>People and clothes</h2>", _bias(results["bias"])]
    if "grounding" in results:
        sections += ["<h2>Attention on the objects that words name</h2>", _grounding(results)]
    if results.get("attention"):
        sections += ["<h2>When attention is replaced</h2>", _attention(results["attention"])]
    for name, groups in results["groups"].items():
        sections += [f"<h2>By {html.escape(name)}</h2>", _groups(groups)]
    for heading, chosen in examples.items():
        sections.append(f'<h2>{html.escape(heading)}</h2>\n<div class="photos">')
        sections += [_example(example) for example in chosen]
        sections.append("</div>")
    signature = [[name, str(value)] for name, value in results["signature"].items()]
    sections += ["<h2>How this was computed</h2>", _table(["", ""], signature), "</main>"]
    return document(
        title=title, body="\n".join(sections), css=resource("report.css"), with_viewer=True
    )


def _scores(results: Mapping[str, Any]) -> str:
    """Return the table of metrics with their intervals."""
    rows = []
    for name, value in results["metrics"].items():
        low, high = results["intervals"].get(name, (None, None))
        rows.append([name, value, low, high])
    note = (
        f"<p>{results['num_images']} photos; the interval is the bootstrap's over photos, at "
        "95 %.</p>"
    )
    return note + _table(["metric", "score", "from", "to"], rows)


def _grounding(results: Mapping[str, Any]) -> str:
    """Return the table of attention correctness and the pointing game."""
    rows: list[list[object]] = []
    for source, found in results["grounding"].items():
        if not found["num_words"]:
            continue
        for name, key in (("attention correctness", "correctness"), ("pointing game", "hit")):
            controls = (found[key + kind] for kind in ("_uniform", "_centre", "_others"))
            rows.append(
                [source, name, found["num_words"], found[key], *found["intervals"][key], *controls]
            )
    head = ["words of", "", "words", "model", "from", "to", "uniform", "centre", "other words"]
    return _table(head, rows)


def _attention(found: Mapping[str, Any]) -> str:
    """Return the table of what words lose when the model's attention is replaced."""
    rows = [
        [name.replace("_", " "), entry["value"], *entry["interval"], entry.get("control", "")]
        for name, entry in found.items()
    ]
    note = (
        "<p>Loss of log-probability a word, in nats; cell changes: share of the words whose "
        "likeliest cell differs from the word before.</p>"
    )
    return note + _table(["", "loss", "from", "to", "random cells"], rows)


def _calibration(found: Mapping[str, Any]) -> str:
    """Return the table of how well the confidence tells right captions from wrong ones."""
    auc = "not defined" if found["auc"] is None else found["auc"]
    return _table(
        ["", ""],
        [
            ["expected calibration error", found["ece"]],
            ["area under the curve", auc],
            ["share of right captions", found["right"]],
            ["of the surest half", found["risk_coverage"][4]["right"]],
        ],
    )


def _bias(counts: Mapping[str, Any]) -> str:
    """Return the table of photos on which the caption names people and clothes as references do."""
    rows = [
        [f"{category}: {group}", *(row[key] for key in ("photos", "right", "wrong", "silent"))]
        for category, groups in counts.items()
        for group, row in groups.items()
    ]
    return _table(["", "photos", "right", "wrong", "neither"], rows)


def _groups(groups: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the scores of groups of images."""
    names = [name for name in groups[0] if name not in ("from", "to")]
    rows = []
    for group in groups:
        low, high = group["from"], group["to"]
        bounds = [] if low is None else [f"{low:.4g} or more"]
        bounds += [] if high is None else [f"under {high:.4g}"]
        rows.append([" and ".join(bounds) or "all", *(group[name] for name in names)])
    return _table(["", *(name.replace("num_images", "photos") for name in names)], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return an HTML table; columns of numbers are aligned to the right, the first names rows."""

    def cell(value: object) -> str:
        if value is None or isinstance(value, bool | str):
            return f"<td>{html.escape('not computed' if value is None else str(value))}</td>"
        text = f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
        return f'<td class="number">{text}</td>'

    numeric = [
        any(not isinstance(value, str | None) for value in column)
        for column in zip(*rows, strict=True)
    ]
    heads = "".join(
        f'<th scope="col"{" class=number" if number else ""}>{html.escape(name)}</th>'
        for name, number in zip(head, numeric, strict=False)
    )
    body = "\n".join(
        f'<tr><th scope="row">{html.escape(str(name))}</th>{"".join(map(cell, values))}</tr>'
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


def _histogram(name: str, values: Sequence[float], *, integers: bool = False) -> str:
    """Return the histogram of a figure over images."""
    from matplotlib.ticker import MaxNLocator

    axes = _axes(name)
    if integers:
        axes.hist(values, bins=[n - 0.5 for n in range(int(max(values)) + 2)], color="#3f6fb0")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        axes.hist(values, bins=30, color="#3f6fb0")
    axes.set_ylabel("photos")
    return _picture(axes, f"Histogram of {name}")


def _faithfulness(found: Mapping[str, Any]) -> str:
    """Return the curves of the deletion test."""
    axes = _axes("share of the cells taken away")
    for order, label in (
        ("attention", "most attended first"),
        ("random", "at random"),
        ("reverse", "least attended first"),
    ):
        axes.plot([0, *found["shares"]], [0, *found[order]], marker="o", label=label)
    axes.set_ylabel("fall of a word's log-probability")
    axes.legend(frameon=False)
    return _picture(axes, "How much less likely words become without the cells they attend to")


def _axes(label: str) -> Axes:
    """Return empty axes with a label below."""
    # No pyplot: it keeps figures alive and may open a display.
    from matplotlib.figure import Figure

    axes = Figure(figsize=(4.4, 3.0), layout="constrained").add_subplot()
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _picture(axes: Axes, alt: str) -> str:
    """Return a plot as an image of SVG: styles inside an image pass the page's security policy."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    content = base64.b64encode(figure_bytes(figure, "svg", title=alt)).decode()
    return f'<img alt="{html.escape(alt)}" src="data:image/svg+xml;base64,{content}">'
