"""Curves of a run, as matplotlib's figure has them."""

from __future__ import annotations

import numpy as np

from captioner.visualization.figures import save_curves


def panel(figure, title):
    return next(axes for axes in figure.axes if axes.get_title(loc="left") == title)


def steps(values, name="total"):
    return [{"kind": "train", "step": i + 1, name: v} for i, v in enumerate(values)]


def test_a_short_run_has_a_dot_for_each_step_and_no_mean_of_too_few():
    axes = panel(save_curves(steps([3.0, 1.0, 2.0]), [], title="short"), "loss")
    (line,) = axes.lines
    assert line.get_marker() == "o"
    assert line.get_ydata().tolist() == [3.0, 1.0, 2.0]
    values = np.sin(np.arange(100)) + 3
    axes = panel(save_curves(steps(values), [], title="long"), "loss")
    single, mean = (line.get_ydata() for line in axes.lines)
    assert single.tolist() == values.tolist()
    assert np.std(mean) < 0.8 * np.std(values)


def test_a_figure_that_hardly_moves_is_shown_from_0():
    for values, expected in (([0.981, 0.982, 0.983], True), ([0.1, 0.5, 0.9], False)):
        figure = save_curves(steps(values, "attention_entropy"), [], title="run")
        low, _ = panel(figure, "entropy of attention (1: uniform)").get_ylim()
        assert (low == 0) == expected
