"""How attention is shown, and one word painted so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from captioner.visualization.heat import attention_heat
from captioner.visualization.overlay import OPACITY, ColourMap, Style, mark_looks, overlay

if TYPE_CHECKING:
    from captioner.types import Caption


@dataclass(frozen=True)
class Look:
    """What the pictures of a caption share; smooth as in `attention_heat`, the others as in
    `overlay`, threshold in multiples of uniform attention."""

    smooth: bool = True
    style: Style = "colour"
    colour_map: ColourMap = "cividis"
    opacity: float = OPACITY
    threshold: float = 0.0


def painted_word(
    photo: Image.Image, caption: Caption, index: int, *, vmax: float, look: Look
) -> Image.Image:
    """The photo, at the size given, with the map of word `index` and what hard attention did."""
    heat = attention_heat(
        caption.maps[index],
        caption.geometry,
        width_px=photo.width,
        height_px=photo.height,
        smooth=look.smooth,
    )
    picture = overlay(
        photo,
        heat,
        vmax=vmax,
        style=look.style,
        colour_map=look.colour_map,
        opacity=look.opacity,
        threshold=look.threshold,
    )
    mark_looks(picture, caption, index)
    return picture
