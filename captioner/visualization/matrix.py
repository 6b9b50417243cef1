"""The alignment matrix that papers show: words down, cells, rows and columns of the grid across."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from captioner.visualization.labels import KEY
from captioner.visualization.style import OCTAVES, SCALE_TICKS, OverlayStyle, Style, scale_octaves
from captioner.visualization.typography import INK, MUTED, font, one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from captioner.visualization.caption import Caption


def alignment_matrix(caption: Caption, style: Style = None) -> Image.Image:
    """Draw attention as a matrix: words × cells (row by row), words × rows, words × columns.

    Rows and columns are sums over the grid as the image shows it, left to right. The cells that
    hard attention sampled are marked.
    """
    return Image.open(io.BytesIO(matrix_bytes(caption, "png", style))).convert("RGB")


def matrix_bytes(caption: Caption, kind: str, style: Style = None) -> bytes:
    """Return the same as the content of a PNG, PDF or SVG file."""
    from captioner.visualization.vector import figure_bytes

    figure = _figure(caption, OverlayStyle.of(style))
    return figure_bytes(figure, kind, title=caption.text, dpi=144, facecolor="white")


def _figure(caption: Caption, style: OverlayStyle) -> Figure:
    from matplotlib.figure import Figure  # slow to import: only here

    maps = caption.maps[:, :, ::-1] if caption.geometry.flipped else caption.maps
    count, rows, columns = maps.shape
    length = rows * columns
    figure = Figure(figsize=(11, 1.9 + 0.26 * count), layout="constrained")  # inches
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.15, h_pad=0.15)
    title = one_line(caption.text) or "(no words)"
    figure.suptitle(title, x=0.01, ha="left", color=INK, font=_face(title, 17, bold=True))
    if not count:
        return figure
    parts = (
        (f"{length} cells, row by row", maps.reshape(count, length) * length),
        (f"{rows} rows, from the top", maps.sum(2) * rows),
        (f"{columns} columns, from the left", maps.sum(1) * columns),
    )
    places = figure.subplots(1, 3, width_ratios=(5, 2, 2))
    for axes, (heading, values) in zip(places, parts, strict=True):
        options: Any = {"aspect": "auto", "interpolation": "none", "vmin": 0, "vmax": OCTAVES}
        picture = axes.imshow(scale_octaves(values), cmap=style.colour_map, **options)
        axes.set_title(heading, loc="left", color=MUTED, font=_face(heading, 10))
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.hlines(np.arange(count - 1) + 0.5, -0.5, values.shape[1] - 0.5, color="white", lw=1)
    first = places[0]
    first.set_yticks(np.arange(count), [one_line(word) for word in caption.words])
    first.tick_params(length=0)
    for label, word in zip(first.get_yticklabels(), caption.words, strict=True):
        label.set(font=_face(word, 10), color=INK)
    first.vlines(np.arange(columns, length, columns) - 0.5, -0.5, count - 0.5, color="white", lw=1)
    for index, cells in enumerate(() if caption.cells is None else caption.cells):
        for cell in np.unique(cells).tolist():
            shown = cell + columns - 1 - 2 * (cell % columns) if caption.geometry.flipped else cell
            for colour, width in (("black", 3.0), ("white", 1.2)):  # shows on every colour
                first.plot(shown, index, "s", ms=6, mfc="none", mec=colour, mew=width)
    if caption.cells is not None:
        first.set_xlabel(f"□ {KEY['cell'].split(';')[0]}", loc="left", color=MUTED)
    bar = figure.colorbar(picture, ax=places, orientation="horizontal", shrink=0.35, anchor=(0, 1))
    values, labels = zip(*SCALE_TICKS, strict=True)
    bar.set_ticks(scale_octaves(values), labels=labels)
    bar.set_label(KEY["scale"], color=MUTED)
    bar.outline.set_visible(False)
    return figure


def _face(text: str, points: int, *, bold: bool = False) -> Any:
    """Return a font of matplotlib that has the letters of a text."""
    from matplotlib.font_manager import FontProperties

    return FontProperties(fname=str(font(points, bold=bold, text=text).path), size=points)
