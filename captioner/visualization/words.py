"""One picture a word: the overlay at full size, over a strip with the word's numbers; and GIFs."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw

from captioner.visualization.labels import WORD_LABEL_HEIGHT, draw_footer, draw_word_label
from captioner.visualization.overlay import resize_captioned, scaled_size, word_overlay
from captioner.visualization.sheet import SHEET, draw_heading
from captioner.visualization.style import Layers, OverlayStyle
from captioner.visualization.typography import RULE

if TYPE_CHECKING:
    from captioner.types import Caption

MAX_SIDE_PX = 2048
_MIN_SIDE_PX = 320
_SMALLEST_TEXT = 15
ANIMATION_SIDE_PX = 512  # of the image in an animation, at most
_WORD_SECONDS, _STILL_SECONDS = 0.9, 1.6


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
    """Yield one picture a word, in reading order; one at a time, because many may fill the memory.

    The image keeps its shape and its resolution, up to max_side_px on its longer side; images
    with less than 320 px there are enlarged to that. Under it stand the word, its probability,
    its gate, the scale and the key to the signs, in a size that fits the picture.

    Raises:
        ImageError: An image of another size than the caption's; when the first picture is drawn.
    """
    style = OverlayStyle.of(style)
    size = word_image_size(image.size, max_side_px)
    layers = Layers(resize_captioned(image, caption.geometry, size), style)

    canvas_width = max(size[0], _MIN_SIDE_PX)
    # In step with the picture, but no wider than a narrow one can hold.
    text = max(_SMALLEST_TEXT, min(round(math.sqrt(size[0] * size[1]) / 30), canvas_width // 20))
    place = {"left": text, "width": canvas_width - 2 * text, "size": text}
    below = size[1] + round(WORD_LABEL_HEIGHT * text) + text
    height = below + draw_footer(None, [caption], style, top=below, **place) + text
    for index in range(len(caption.words)):
        canvas = Image.new("RGB", (canvas_width, height), "white")
        canvas.paste(word_overlay(layers, caption, index), ((canvas_width - size[0]) // 2, 0))
        draw_word_label(canvas, caption, index, top=size[1], **place)
        draw_footer(canvas, [caption], style, top=below, **place)
        yield canvas


def caption_gif(
    image: Image.Image, caption: Caption, style: OverlayStyle | str | None = None
) -> bytes:
    """Return a GIF of a caption that repeats for ever: the image, then one frame a word.

    Raises:
        ImageError: An image of another size than the caption's.
    """
    frames = caption_frames(image, caption, style)
    # All share 256 colours and none is dithered, so that what does not change is stored once.
    quarter = (max(1, frames[0].width // 4), max(1, frames[0].height // 4))
    sample = Image.new("RGB", (quarter[0], quarter[1] * len(frames)))
    for number, frame in enumerate(frames):
        sample.paste(frame.resize(quarter, Image.Resampling.NEAREST), (0, number * quarter[1]))
    palette = sample.quantize(256, method=Image.Quantize.MEDIANCUT)
    first, *others = (f.quantize(palette=palette, dither=Image.Dither.NONE) for f in frames)
    seconds = [_STILL_SECONDS, *[_WORD_SECONDS] * (len(others) - 1), _STILL_SECONDS]
    file = io.BytesIO()
    first.save(
        file,
        format="GIF",
        save_all=True,
        append_images=others,
        duration=[round(1000 * time) for time in seconds[: len(frames)]],
        loop=0,
        optimize=False,
    )
    return file.getvalue()


def caption_frames(
    image: Image.Image, caption: Caption, style: OverlayStyle | str | None
) -> list[Image.Image]:
    """Return the image and each word's overlay, all under the caption and its note."""
    pictures = list(word_images(image, caption, style, max_side_px=ANIMATION_SIDE_PX))
    size = word_image_size(image.size, ANIMATION_SIDE_PX)
    plain = resize_captioned(image, caption.geometry, size)
    still = Image.new("RGB", pictures[0].size if pictures else size, "white")
    left = (still.width - plain.width) // 2
    still.paste(plain, (left, 0))
    # A white photo has no edge otherwise; within it, for the picture may be no wider.
    edge = (left, 0, left + plain.width - 1, plain.height - 1)
    ImageDraw.Draw(still).rectangle(edge, outline=RULE)

    text = max(15, still.width // 26)
    layout = replace(SHEET, margin=text, text=round(0.8 * text), title=text)
    width = still.width - 2 * text
    top = draw_heading(None, "", caption, layout, 0, width) + text
    above = Image.new("RGB", (still.width, still.height + top), "white")
    draw_heading(above, "", caption, layout, text // 2, width)
    frames = []
    for picture in (still, *pictures):
        frames.append(above.copy())
        frames[-1].paste(picture, (0, top))
    return frames
