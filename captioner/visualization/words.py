"""One picture a word: the overlay at full size, over a strip with the word's numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from PIL import Image

from captioner.visualization.labels import (
    WORD_LABEL_HEIGHT,
    draw_footer,
    draw_word_label,
)
from captioner.visualization.overlay import resize_captioned, scaled_size, word_panel
from captioner.visualization.style import Layers, OverlayStyle

if TYPE_CHECKING:
    from captioner.types import Caption

MAX_SIDE_PX = 2048
_MIN_SIDE_PX = 320
_SMALLEST_TEXT = 15


def word_image_size(image_size: tuple[int, int], max_side_px: int) -> tuple[int, int]:
    """Return the size of the image in the pictures of its words: see `word_images`.

    >>> word_image_size((4000, 3000), 2048), word_image_size((80, 160), 2048)
    ((2048, 1536), (160, 320))
    """
    longer = max(image_size)
    return scaled_size(image_size, min(max(longer, _MIN_SIDE_PX), max_side_px) / longer)


def word_images(
    image: Image.Image,
    caption: Caption,
    style: OverlayStyle | str | None = None,
    *,
    max_side_px: int = MAX_SIDE_PX,
) -> Iterator[Image.Image]:
    """Yield one picture a word, in reading order.

    The image keeps its shape and its resolution, up to max_side_px on its longer side; images
    with less than 320 px there are enlarged to that. Under it stand the word, its probability,
    its gate, the scale and the key to the signs, in a size that fits the picture. Pictures are
    made one at a time, because those of a long caption may not fit in memory; a caption without
    words has none.

    Raises:
        ImageError: An image of another size than the caption's; when the first picture is drawn.
    """
    style = OverlayStyle.of(style)
    size = word_image_size(image.size, max_side_px)
    layers = Layers(resize_captioned(image, caption.geometry, size), style)

    canvas_width = max(size[0], _MIN_SIDE_PX)
    # In step with the picture, but no wider than a narrow one can hold.
    text = max(_SMALLEST_TEXT, min(round(math.sqrt(size[0] * size[1]) / 30), canvas_width // 20))
    margin = text
    inner = canvas_width - 2 * margin
    label_height = round(WORD_LABEL_HEIGHT * text)
    footer = {"left": margin, "top": size[1] + label_height + margin, "width": inner, "size": text}
    height = footer["top"] + draw_footer(None, [caption], style, **footer) + margin

    for index in range(len(caption.words)):
        canvas = Image.new("RGB", (canvas_width, height), "white")
        canvas.paste(word_panel(layers, caption, index), ((canvas_width - size[0]) // 2, 0))
        draw_word_label(canvas, caption, index, left=margin, top=size[1], width=inner, size=text)
        draw_footer(canvas, [caption], style, **footer)
        yield canvas
