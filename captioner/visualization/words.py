"""One picture a word: the overlay on the full photo, over a strip with the word's numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from PIL import Image

from captioner.visualization.heat import colour_scale
from captioner.visualization.labels import (
    LEGEND_HEIGHT,
    WORD_LABEL_HEIGHT,
    draw_legend,
    draw_word_label,
)
from captioner.visualization.look import Look, painted_word
from captioner.visualization.overlay import OPACITY, ColourMap, Style, resized

if TYPE_CHECKING:
    from captioner.types import Caption

MAX_SIDE_PX = 2048
_MIN_SIDE_PX = 320
_SMALLEST_TEXT = 15


def word_images(
    photo: Image.Image,
    caption: Caption,
    *,
    smooth: bool = True,
    style: Style = "colour",
    colour_map: ColourMap = "cividis",
    opacity: float = OPACITY,
    threshold: float = 0.0,
    vmax: float | None = None,
    max_side_px: int = MAX_SIDE_PX,
) -> Iterator[Image.Image]:
    """Yield one picture a word, in reading order, all on the caption's one colour scale.

    The photo keeps its shape and its resolution, up to max_side_px on its longer side; photos
    with less than 320 px there are enlarged to that. Under it stand the word, its probability,
    its gate and the colour legend, in a size that fits the picture. Pictures are made one at a
    time, because those of a whole caption may not fit in memory; a caption without words has none.

    The other arguments, and the errors, are those of `attention_sheet`; errors are raised when
    the first picture is asked for.
    """
    look = Look(smooth, style, colour_map, opacity, threshold)
    if vmax is None:
        vmax = colour_scale(caption, smooth=smooth)
    longer = max(photo.size)
    scale = min(max(longer, _MIN_SIDE_PX), max_side_px) / longer
    size = max(1, round(photo.width * scale)), max(1, round(photo.height * scale))
    picture = resized(photo, caption.geometry, size)

    canvas_width = max(size[0], _MIN_SIDE_PX)
    # In step with the picture, but no wider than a narrow one can hold.
    text = max(_SMALLEST_TEXT, min(round(math.sqrt(size[0] * size[1]) / 30), canvas_width // 20))
    margin = text
    inner = canvas_width - 2 * margin
    beside = inner >= 28 * text  # else the legend goes below the word
    label_width = min((inner - 2 * margin) // 2 if beside else inner, 20 * text)
    label_height, legend_height = round(WORD_LABEL_HEIGHT * text), round(LEGEND_HEIGHT * text)
    legend_top = round(0.95 * text) if beside else label_height + margin
    legend_left = margin + (label_width + 2 * margin if beside else 0)
    strip = max(label_height, legend_top + legend_height) + margin

    for index, word in enumerate(caption.words):
        painted = painted_word(picture, caption, index, vmax=vmax, look=look)
        canvas = Image.new("RGB", (canvas_width, size[1] + strip), "white")
        canvas.paste(painted, ((canvas_width - size[0]) // 2, 0))
        draw_word_label(
            canvas,
            left=margin,
            top=size[1],
            width=label_width,
            size=text,
            word=word,
            log_prob=float(caption.log_probs[index]),
            beta=None if caption.beta is None else float(caption.beta[index]),
        )
        draw_legend(
            canvas,
            left=legend_left,
            top=size[1] + legend_top,
            width=label_width,
            size=text,
            vmax=vmax,
            look=look,
        )
        yield canvas
