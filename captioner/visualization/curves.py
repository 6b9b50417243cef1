"""Curves of a training run: losses, rates, metrics of validation, statistics of attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from captioner.files import save_bytes
from captioner.visualization.typography import INK, MUTED, RULE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Titles, and which figures share a panel, by their kind. Those that a run did not log are left out.
_BOTH = ("train", "validation")
_PANELS = {
    "loss": [("train", name) for name in ("total", "cross_entropy", "smoothed")],
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
_SHARES = ("entropy of attention (1: uniform)", "gate β")  # panels of figures from 0 to 1
_ACROSS = 3  # panels


def save_curves(
    entries: Sequence[Mapping[str, Any]], paths: Sequence[Path], *, title: str
) -> Figure:
    """Draw a run's curves and write them to PNG, PDF or SVG files, as the suffixes say.

    Vertical lines are the validations. A figure that hardly moves is shown between its bounds.

    Args:
        entries: The lines of metrics.jsonl: kind, step, epoch and figures by name; None where a
            figure was not finite.
    """
    import matplotlib
    from matplotlib.figure import Figure  # without pyplot, which may search for a display

    from captioner.visualization.vector import figure_bytes

    panels = [(name, lines) for name, keys in _PANELS.items() if (lines := _lines(entries, keys))]
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
        validations = [entry["step"] for entry in entries if entry["kind"] == "validation"]
        places = figure.subplots(down, _ACROSS, squeeze=False).ravel()
        for axes, (name, lines) in zip(places, panels, strict=False):
            _draw_panel(axes, name, lines, validations)
        for axes in places[len(panels) :]:
            axes.set_axis_off()
        for path in paths:
            save_bytes(figure_bytes(figure, path.suffix[1:], title=title, dpi=160), path)
    return figure


def _lines(
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
    axes: Any,
    name: str,
    lines: Mapping[str, tuple[np.ndarray, np.ndarray, bool]],
    validations: Sequence[float],
) -> None:
    """Draw one panel: validations with dots, training figures with their running mean."""
    axes.set_title(name, loc="left", fontsize=10, color=INK)
    for step in validations:
        axes.axvline(step, color="#e6e9ee", lw=0.8, zorder=0)
    for index, (label, (steps, values, validated)) in enumerate(lines.items()):
        colour, dashes = _COLOURS[index % 5], _DASHES[index % 5]
        if validated or len(values) < 20:  # too few for a mean
            axes.plot(steps, values, color=colour, ls=dashes, marker="o", ms=3, label=label)
        else:
            axes.plot(steps, values, color=colour, lw=0.7, alpha=0.3)
            axes.plot(steps, _running_mean(values), color=colour, ls=dashes, lw=1.5, label=label)
    if len(lines) > 3:  # room for their names
        axes.margins(y=0.25)
    # Names of lines, unless the title says the same of the only one that there can be.
    if len(_PANELS[name]) > 1 and list(lines) != [name]:
        axes.legend(frameon=False, fontsize=8, ncols=2 if len(lines) > 3 else 1)
    values = np.concatenate([values for _, values, _ in lines.values()])
    values = values[np.isfinite(values)]
    if values.size and np.ptp(values) < 0.1 * np.abs(values).max():
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 0.0), max(high, 1.0 if name in _SHARES else 0.0))
    axes.set_xlabel("step")
    axes.locator_params(axis="x", integer=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.02)


def _running_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over a window, a twentieth of the run, around each value; NaN is left out."""
    window = np.ones(2 * max(1, len(values) // 40) + 1)
    finite = np.isfinite(values)
    total = np.convolve(np.where(finite, values, 0.0), window, "same")
    with np.errstate(invalid="ignore"):
        return total / np.convolve(finite, window, "same")
