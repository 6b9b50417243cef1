"""How attention is shown: settings, the one scale of all pictures, what each style paints."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from PIL import Image

from captioner.config import validate_section
from captioner.config.settings import NonNegativeFloat, UnitInterval

StyleName = Literal["focus", "light", "colour", "contour", "mask"]
STYLES: tuple[StyleName, ...] = get_args(StyleName)
ColourMap = Literal["viridis", "cividis"]
COLOUR_MAPS: tuple[ColourMap, ...] = get_args(ColourMap)  # both safe for the colour-blind
DEFAULT_OPACITY = {"focus": 1.0, "light": 0.75, "colour": 0.65, "contour": 1.0, "mask": 0.65}
UNSURE_PROBABILITY = 0.15  # words below it are marked

# The scale is logarithmic and the same in every picture, so that a tint or a brightness always
# means the same attention: 1 (uniform) is a fifth of the way up, 3 is half of it.
SCALE_LOW, SCALE_HIGH = 0.5, 16.0  # multiples of uniform attention
OCTAVES = math.log2(SCALE_HIGH / SCALE_LOW)
SCALE_TICKS = ((0.5, "½"), (1.0, "1"), (2.0, "2"), (4.0, "4"), (8.0, "8"), (16.0, "16+"))
PEAK_MARKED_FROM = 3.0  # times uniform, from which a peak is marked
FLAT_BELOW = 2.0  # a map whose highest cell has less than this, times uniform, counts as flat

# Lines of equal attention: multiples of uniform, and their widths in a picture of 200 x 200 px.
# There is none at 1, or flat attention would be covered by it.
LINES = ((2.0, 0.6), (4.0, 1.2), (8.0, 2.0))
LINE_COLOUR = "#ffab19"
CASING_COLOUR = "#1c1300"  # a dark seam, without which amber vanishes on a bright photo
CASING_OPACITY = 0.55
MIN_LINE_PX = 0.9
# The grey of what is not attended, lifted so that a dark photo's own colours stand out from it too.
LIFTED_SLOPE, LIFTED_OFFSET = 0.35, 0.12 * 255

# A mark's line is as wide as fits so often into the longer side of the picture, and into the
# shorter side of a cell; its dark rim is as wide as fits so often into the line.
MARKS_IN_PICTURE, MARKS_IN_CELL, RIMS_IN_MARK = 140, 8, 3

# Of sampled paths, of which no more are drawn; distinct for every kind of colour vision.
PATH_COLOURS = ("#56b4e9", "#f0e442", "#cc79a7", "#2fd6a3")

_WARM_WHITE = (1.0, 0.95, 0.82)
LEGEND_PHOTO = (86, 150, 214)  # stands for the photo in legends
LEGEND_PLAIN = (230, 233, 238)  # of the style contour, where lines alone mean something

Style: TypeAlias = "OverlayStyle | str | None"  # or its name; None is the default


class Paint(NamedTuple):
    """What a style lays over what, by level of attention on the scale."""

    base: Literal["photo", "grey", "lifted"]  # below: the photo, its grey, or its lifted grey
    colours: np.ndarray | None  # laid over it, uint8 [256, 3]; None: the photo
    alpha: np.ndarray  # how strongly, at the style's full strength, [256] from 0 to 1
    lines: bool = False  # whether LINES are drawn on top


@dataclass(frozen=True)
class OverlayStyle:
    """Settings for drawing the attention of a word over an image.

    Args:
        kind: `focus` keeps the image's own colours where attention is high, turns it to a lifted
            grey where it is low, and draws lines of equal attention. `light` dims the image where
            attention is low and lights it where it is high, like the figures of the paper.
            `colour` lays colours over the grey image. `contour` only draws lines, `mask` only dims.
        smooth: Interpolate between cells; False shows them as they are.
        colour_map: Colours of `colour`.
        opacity: Strength of the effect, 0 to 1; None is the style's default. Lines are opaque.
        threshold: Attention below it, in multiples of uniform, is left out.
    """

    kind: StyleName = "focus"
    smooth: bool = True
    colour_map: ColourMap = "viridis"
    opacity: UnitInterval | None = None
    threshold: NonNegativeFloat = 0.0

    def __post_init__(self) -> None:
        validate_section(self, "style: ")

    @classmethod
    def of(cls, style: Style) -> OverlayStyle:
        """Return a style, also from its name; None is the default."""
        return style if isinstance(style, cls) else cls(style or "focus")  # type: ignore[arg-type]

    @property
    def lines(self) -> tuple[tuple[float, float], ...]:
        """The lines of equal attention that are drawn: multiples of uniform, and their widths."""
        drawn = LINES if paint_of(self.kind, self.colour_map).lines else ()
        return tuple(line for line in drawn if line[0] >= self.threshold)

    def ramp(self, width: int, height: int) -> Image.Image:
        """Return the bar of a legend from SCALE_LOW to SCALE_HIGH, with the lines upright in it."""
        levels = np.linspace(0, 255, width).round().astype(np.uint8)
        photo = LEGEND_PLAIN if self.kind == "contour" else LEGEND_PHOTO
        layers = Layers(Image.new("RGB", (width, 1), photo), self)
        above, alpha = layers.above(levels[None])
        picture = Image.composite(above, layers.base, alpha).resize((width, height))
        for heat, thick in self.lines:
            wide = round(thick * height / 14) + 1
            left = round((width - 1) * scale_octaves(heat) / OCTAVES) - wide // 2
            picture.paste(CASING_COLOUR, (left - 1, 0, left + wide + 1, height))
            picture.paste(LINE_COLOUR, (left, 0, left + wide, height))
        return picture


class Layers:
    """The two images that a style lays over each other, made once for all words of a caption."""

    def __init__(self, photo: Image.Image, style: OverlayStyle) -> None:
        self.photo = self.base = photo
        self.style, paint = style, paint_of(style.kind, style.colour_map)
        below = scale_levels(scale_octaves(style.threshold))
        strength = DEFAULT_OPACITY[style.kind] if style.opacity is None else style.opacity
        alpha, colours = paint.alpha.copy(), paint.colours
        alpha[:below] = 0.0 if style.kind == "colour" else alpha[0]
        if colours is None:
            alpha = 1 - strength * (1 - alpha)
        else:
            alpha *= strength
            colours = np.where(np.arange(256)[:, None] < below, colours[0], colours)
        # Of the upper image, by level of attention: [256] and [256, 3]; None: it is the photo.
        self._alpha, self._colours = (255 * alpha + 0.5).astype(np.uint8), colours
        if paint.base != "photo":
            grey = photo.convert("L")
            if paint.base == "lifted":
                grey = grey.point([round(LIFTED_SLOPE * v + LIFTED_OFFSET) for v in range(256)])
            self.base = grey.convert("RGB")

    def above(self, levels: np.ndarray) -> tuple[Image.Image, Image.Image]:
        """Return the upper image and its opacity for levels of attention, uint8 [height, width]."""
        above = self.photo if self._colours is None else Image.fromarray(self._colours[levels])
        return above, Image.fromarray(self._alpha.take(levels))


def scale_octaves(heat: Any) -> Any:
    """Return how many octaves attention (a number or an array) stands above SCALE_LOW.

    >>> float(scale_octaves(0.1)), float(scale_octaves(1.0)), float(scale_octaves(90.0)), OCTAVES
    (0.0, 1.0, 5.0, 5.0)
    """
    return np.log2(np.clip(heat, SCALE_LOW, SCALE_HIGH)) - math.log2(SCALE_LOW)


def scale_levels(octaves: np.ndarray) -> np.ndarray:
    """Return levels on the scale, uint8 0 to 255, of what `scale_octaves` returned."""
    return (octaves * (255 / OCTAVES) + 0.5).astype(np.uint8)


@lru_cache(maxsize=len(COLOUR_MAPS))
def colour_table(name: ColourMap) -> np.ndarray:
    """Return the 256 colours of a colour map, uint8 [256, 3], lowest first."""
    from matplotlib import colormaps  # here, because it takes longer to import than all of ours

    return np.asarray(colormaps[name](np.arange(256), bytes=True)[:, :3])


@lru_cache(maxsize=8)
def paint_of(kind: StyleName, colour_map: ColourMap) -> Paint:
    """Return what a style lays over what."""
    position = np.linspace(0, 1, 256)
    if kind == "focus":
        # The photo's own colours from 8 x uniform, none of them at 0.5.
        return Paint("lifted", None, np.clip(position * OCTAVES / 4, 0, 1), lines=True)
    if kind == "contour":
        return Paint("photo", None, np.ones(256), lines=True)
    if kind == "colour":
        return Paint("grey", colour_table(colour_map), np.ones(256))
    if kind == "mask":
        return Paint("photo", np.zeros((256, 3), dtype=np.uint8), 1 - position)
    # Light: a smooth step up to full brightness at 7 x uniform, steepest between 1 and 3 x.
    # Screened with a warm white: a dark image is lit too, a bright one is not burnt out.
    rise = np.clip(position / 0.75, 0, 1)
    kept = rise**2 * (3 - 2 * rise)
    glow = 0.7 * np.clip((position - 0.35) / 0.6, 0, 1)
    alpha = 1 - kept * (1 - glow)
    warm = (glow / alpha)[:, None] * np.array(_WARM_WHITE)
    return Paint("photo", (255 * warm).round().astype(np.uint8), alpha)
