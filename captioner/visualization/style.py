"""How attention is shown: settings, the one scale of all pictures, tables of colour and light.

A pixel is painted from two numbers, the image's own value and the level of attention on the scale.
Each style is a table over the 256 levels; the browser viewer paints by the same tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np

from captioner.config import validate_section
from captioner.config.fields import NonNegativeFloat, UnitInterval
from captioner.visualization.heat import FLAT_BELOW, cell_profile

StyleName = Literal["light", "colour", "contour", "mask"]
STYLES: tuple[StyleName, ...] = get_args(StyleName)
ColourMap = Literal["viridis", "cividis"]
COLOUR_MAPS: tuple[ColourMap, ...] = get_args(ColourMap)  # both safe for the colour-blind
DEFAULT_OPACITY: dict[StyleName, float] = {
    "light": 0.75,
    "colour": 0.65,
    "contour": 1.0,
    "mask": 0.65,
}
UNSURE_PROBABILITY = 0.15  # words below it are marked

# The scale is logarithmic and the same in every picture, so that a tint or a brightness always
# means the same attention: 1 (uniform) is a fifth of the way up, 3 is half of it.
SCALE_LOW, SCALE_HIGH = 0.5, 16.0  # multiples of uniform attention
OCTAVES = math.log2(SCALE_HIGH / SCALE_LOW)
SCALE_TICKS = ((0.5, "½"), (1.0, "1"), (2.0, "2"), (4.0, "4"), (8.0, "8"), (16.0, "16+"))
PEAK_MARKED_FROM = 3.0  # times uniform, from which the most attended cell is marked
MOST_LINES = 4  # steps of sampled paths that are drawn for a word
# A mark's line is as wide as fits so often into the longer side of the picture, and into the
# shorter side of a cell; its dark rim is as wide as fits so often into the line.
LINES_IN_PICTURE, LINES_IN_CELL, RIMS_IN_LINE = 200, 8, 3
CONTOUR_LEVELS = (2.0, 4.0, 8.0, 16.0)  # none at 1: flat attention would be covered by it

_WARM_WHITE = (1.0, 0.95, 0.82)
_LEGEND_GREY = 150  # of the image that a legend of `light` and `mask` stands for


@dataclass(frozen=True)
class OverlayStyle:
    """Settings for drawing the attention of a word over an image.

    Args:
        kind: `light` keeps the image's colours, dims it where attention is low and lights it with
            a warm white where it is high, like the figures of the paper. `colour` turns the image
            grey and lays colours over it. `contour` draws lines of equal attention at
            CONTOUR_LEVELS. `mask` only dims.
        smooth: Blur the cells as in the paper's section 5.4; False shows them as they are.
        colour_map: Colours of `colour` and `contour`.
        opacity: Strength of the effect, 0 to 1; None is the style's default. Lines are opaque.
        threshold: Attention below it, in multiples of uniform, is left out.

    Raises:
        ConfigError: An unknown name, an opacity outside 0 to 1, or a threshold that is not a
            number from 0 up.
    """

    kind: StyleName = "light"
    smooth: bool = True
    colour_map: ColourMap = "viridis"
    opacity: UnitInterval | None = None
    threshold: NonNegativeFloat = 0.0

    def __post_init__(self) -> None:
        validate_section(self, "style: ")

    @property
    def strength(self) -> float:
        """The opacity, or the default of the style."""
        return DEFAULT_OPACITY[self.kind] if self.opacity is None else self.opacity

    def ramp(self, count: int) -> np.ndarray:
        """Return the colours of a legend from SCALE_LOW to SCALE_HIGH, uint8 [count, 3].

        What is below the threshold is pale, or wholly dimmed; of `contour`, all but the lines.
        """
        heat = SCALE_LOW * 2 ** np.linspace(0, OCTAVES, count)
        levels = scale_levels(heat)
        below = heat < self.threshold * (1 - 1e-9)
        if self.kind in ("light", "mask"):
            levels[below] = 0
            table = lookup_table(self.kind, self.colour_map, self.strength)
            return table[:, levels, _LEGEND_GREY].T
        colours = colour_table(self.colour_map)[levels].astype(float)
        if self.kind == "contour":
            below = np.ones(count, dtype=bool)
            half = max(1, count // 120)
            for line in CONTOUR_LEVELS:
                if line >= self.threshold:
                    place = round((count - 1) * scale_position(line))
                    below[max(0, place - half) : place + half + 1] = False
        colours[below] += 0.85 * (255 - colours[below])
        return colours.round().astype(np.uint8)


def scale_position(heat: float) -> float:
    """Return where an attention above 0 stands on the scale, from 0 to 1.

    >>> scale_position(0.5), scale_position(1.0), scale_position(16.0), scale_position(90.0)
    (0.0, 0.2, 1.0, 1.0)
    """
    return min(max(math.log2(heat / SCALE_LOW) / OCTAVES, 0.0), 1.0)


def scale_levels(heat: np.ndarray) -> np.ndarray:
    """Return the level of each attention (multiples of uniform) on the scale, uint8 0 to 255."""
    octaves = np.log2(np.clip(heat, SCALE_LOW, SCALE_HIGH) * (1 / SCALE_LOW))
    return (octaves * (255 / OCTAVES) + 0.5).astype(np.uint8)


@lru_cache(maxsize=len(COLOUR_MAPS))
def colour_table(name: ColourMap) -> np.ndarray:
    """Return the 256 colours of a colour map, uint8 [256, 3], lowest first."""
    from matplotlib import colormaps  # here, because it takes longer to import than all of ours

    return np.asarray(colormaps[name](np.arange(256), bytes=True)[:, :3])


@lru_cache(maxsize=8)
def effect_tables(kind: StyleName, colour_map: ColourMap) -> tuple[np.ndarray, np.ndarray]:
    """Return what a style at its full strength makes of a pixel, by the level of attention.

    A pixel of value v (of the grey image for `colour`) becomes v * factor + offset; of strength s
    it becomes (1 - s) * v + s * (v * factor + offset).

    Returns:
        factor in [0, 1] and offset in [0, 255], both float64 [256 levels, 3 channels].
    """
    position = np.linspace(0, 1, 256)[:, None]
    if kind == "mask":
        return np.repeat(position, 3, axis=1), np.zeros((256, 3))
    if kind == "light":
        # A smooth step up to full brightness at 7 x uniform, steepest between 1 and 3 x.
        rise = np.clip(position / 0.75, 0, 1)
        kept = rise**2 * (3 - 2 * rise)
        # Screened with a warm white: a dark image is lit too, a bright one is not burnt out.
        glow = 0.7 * np.clip((position - 0.35) / 0.6, 0, 1) * np.array(_WARM_WHITE)
        return kept * (1 - glow), 255 * glow
    return np.zeros((256, 3)), colour_table(colour_map).astype(np.float64)


@lru_cache(maxsize=32)
def lookup_table(kind: StyleName, colour_map: ColourMap, strength: float) -> np.ndarray:
    """Return a style as a table, uint8 [3 channels, 256 levels, 256 values of a pixel].

    Args:
        strength: Strength of the effect, 0 to 1.
    """
    factor, offset = (table.T[:, :, None] for table in effect_tables(kind, colour_map))
    values = np.arange(256.0)
    painted = values * (1 - strength * (1 - factor)) + strength * offset
    return (painted + 0.5).astype(np.uint8)


def viewer_tables() -> dict[str, Any]:
    """Return all that the browser viewer (viewer.js) paints by, as plain values for JSON."""

    def in_hex(table: np.ndarray) -> str:
        return bytes(table.round().astype(np.uint8)).hex()

    styles: dict[str, dict[str, Any]] = {}
    for kind in STYLES:
        styles[kind] = {"opacity": DEFAULT_OPACITY[kind]}
        if kind in ("light", "mask"):
            factor, offset = effect_tables(kind, "viridis")
            styles[kind] |= {"factor": in_hex(255 * factor), "offset": in_hex(offset)}
    return {
        "styles": styles,
        "colours": {name: in_hex(colour_table(name)) for name in COLOUR_MAPS},
        "scale": {"low": SCALE_LOW, "octaves": OCTAVES, "ticks": SCALE_TICKS},
        "contours": CONTOUR_LEVELS,
        "cell": {"steps": 128, "profile": [round(v, 7) for v in cell_profile(128).tolist()]},
        "mostLines": MOST_LINES,
        "peakMarkedFrom": PEAK_MARKED_FROM,
        "marks": {
            "inPicture": LINES_IN_PICTURE,
            "inCell": LINES_IN_CELL,
            "rimsInLine": RIMS_IN_LINE,
        },
        "legendGrey": _LEGEND_GREY,
        "flatBelow": FLAT_BELOW,
        "unsureProbability": UNSURE_PROBABILITY,
    }
