"""Figures of matplotlib, slow to import: the alignment matrix of papers, and a run's curves."""

from __future__ import annotations

import io
import math
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure  # without pyplot, which may search for a display
from matplotlib.font_manager import FontProperties
from PIL import Image

from captioner.files import save_bytes
from captioner.visualization.caption import Caption
from captioner.visualization.sheet import KEY
from captioner.visualization.style import OCTAVES, SCALE_TICKS, OverlayStyle, Style, scale_octaves
from captioner.visualization.typography import INK, MUTED, RULE, font, one_line, wrap

_WIDTH = 11  # of a matrix, in inches of 72 points
_RC_CONTEXT = threading.Lock()  # matplotlib's settings are those of all threads


def alignment_matrix(caption: Caption, style: Style = None) -> Image.Image:
    """Draw attention as a matrix: words × cells (row by row), words × rows, words × columns.

    Rows and columns are sums over the grid as the image shows it, left to right. The cells that
    hard attention sampled are marked.
    """
    return Image.open(io.BytesIO(matrix_bytes(caption, "png", style))).convert("RGB")


def matrix_bytes(caption: Caption, kind: str, style: Style = None) -> bytes:
    """Return the same as the content of a PNG, PDF or SVG file."""
    figure = _figure(caption, OverlayStyle.of(style))
    return figure_bytes(figure, kind, title=caption.text, dpi=144, facecolor="white")


def _figure(caption: Caption, style: OverlayStyle) -> Figure:
    maps = caption.maps[:, :, ::-1] if caption.geometry.flipped else caption.maps
    count, rows, columns = maps.shape
    length = rows * columns
    title = one_line(caption.text) or "(no words)"
    lines = wrap(title, font(17, bold=True, text=title), 0.95 * 72 * _WIDTH, max_lines=6)
    height = 1.6 + 0.3 * len(lines) + 0.26 * count
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.15, h_pad=0.15)
    face = _face(title, 17, bold=True)
    figure.suptitle("\n".join(lines), x=0.01, ha="left", color=INK, font=face)
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
    return FontProperties(fname=str(font(points, bold=bold, text=text).path), size=points)


def figure_bytes(figure: Figure, kind: str, *, title: str, **options: Any) -> bytes:
    """Return a figure as PNG, PDF or SVG: the same figure, the same bytes; options of savefig."""
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind, {})
    # 42: TrueType, which journals ask for. Letters of an SVG are shapes, for want of the font.
    settings: Any = {"pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "captioner"}
    file = io.BytesIO()
    with _RC_CONTEXT, matplotlib.rc_context(settings), warnings.catch_warnings():
        # Of letters that no font has: `font` says so, once.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(file, format=kind, metadata={"Title": title, **undated}, **options)
    return file.getvalue()


# Titles, and which figures share a panel, by their kind. Those that a run did not log are left out.
_BOTH = ("train", "validation")
_PANELS = {
    "loss": [("train", name) for name in ("total", "smoothed")],
    "cross-entropy of human captions, nats a word": [(kind, "cross_entropy") for kind in _BOTH],
    "validation, freely written captions": [
        ("validation", name) for name in ("CIDEr", "ROUGE_L", "Bleu_1", "Bleu_4", "METEOR")
    ],
    "entropy of attention (1: uniform)": [(kind, "attention_entropy") for kind in _BOTH],
    "change of attention from word to word": [(kind, "attention_change") for kind in _BOTH],
    "gate β": [(kind, "beta") for kind in _BOTH],
    "learning rate": [("train", "learning_rate")],
    "norm of the gradient": [("train", "gradient_norm")],
    "doubly stochastic penalty": [("train", "doubly_stochastic")],
    "REINFORCE term": [("train", "reinforce")],
    "reward": [("train", name) for name in ("reward", "advantage")],
}
# Okabe and Ito's colours, distinct for every kind of colour vision; and lines differ too.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)))
_ACROSS = 3  # panels


def save_curves(
    entries: Sequence[Mapping[str, Any]], paths: Sequence[Path], *, title: str
) -> Figure:
    """Draw a run's curves and write them to PNG, PDF or SVG files, as the suffixes say.

    Args:
        entries: The lines of metrics.jsonl: kind, step, epoch and figures by name; None where a
            figure was not finite.
    """
    found = {name: _logged_lines(entries, keys) for name, keys in _PANELS.items()}
    panels = [(name, lines) for name, lines in found.items() if lines]
    down = max(1, math.ceil(len(panels) / _ACROSS))
    settings: dict[Any, Any] = {
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "text.color": INK,
        "axes.labelcolor": MUTED,
        "axes.edgecolor": RULE,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(4.4 * _ACROSS, 2.9 * down + 0.5), layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        places = figure.subplots(down, _ACROSS, squeeze=False, sharex=True).ravel()
        for axes, (name, lines) in zip(places, panels, strict=False):
            _draw_panel(axes, name, lines)
        for axes in places[len(panels) :]:
            axes.set_axis_off()
        for path in paths:
            save_bytes(figure_bytes(figure, path.suffix[1:], title=title, dpi=160), path)
    return figure


def _logged_lines(
    entries: Sequence[Mapping[str, Any]], keys: Sequence[tuple[str, str]]
) -> dict[str, tuple[np.ndarray, np.ndarray, bool]]:
    """Return steps, values (NaN where not finite), and whether of validation, by logged figure."""
    lines = {}
    for kind, name in keys:
        of_kind = (entry for entry in entries if entry["kind"] == kind and name in entry)
        if logged := [(entry["step"], entry[name]) for entry in of_kind]:
            steps, values = np.array(logged, dtype=float).T  # None becomes NaN
            label = name
            if keys[0][0] != keys[-1][0]:  # of training and of validation
                label = "training" if kind == "train" else kind
            lines[label] = (steps, values, kind == "validation")
    return lines


def _draw_panel(
    axes: Any, name: str, lines: Mapping[str, tuple[np.ndarray, np.ndarray, bool]]
) -> None:
    """Draw one panel: validations with dots, training figures with their running mean."""
    axes.set_title(name, loc="left", fontsize=10, color=INK)
    for index, (label, (steps, values, validated)) in enumerate(lines.items()):
        colour, dashes = _COLOURS[index % 5], _DASHES[index % 5]
        if validated or len(values) < 20:  # too few for a mean
            axes.plot(steps, values, color=colour, ls=dashes, marker="o", ms=3, label=label)
        else:
            axes.plot(steps, values, color=colour, lw=0.7, alpha=0.3)
            axes.plot(steps, _running_mean(values), color=colour, ls=dashes, lw=1.5, label=label)
    axes.legend(frameon=False, fontsize=8)
    low, high = axes.get_ylim()
    if high - low < 0.1 * abs(high):  # it hardly moves
        axes.set_ylim(min(1.1 * low, 0.0), max(1.1 * high, 0.0))
    axes.set_xlabel("step")
    axes.tick_params(labelbottom=True)
    axes.locator_params(axis="x", integer=True)
    axes.spines[["top", "right"]].set_visible(False)


def _running_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over a window, a twentieth of the run, around each value; NaN is left out."""
    window = np.ones(2 * max(1, len(values) // 40) + 1)
    finite = np.isfinite(values)
    total = np.convolve(np.where(finite, values, 0.0), window, "same")
    with np.errstate(invalid="ignore"):
        return total / np.convolve(finite, window, "same")
