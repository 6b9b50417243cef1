"""Animated GIFs: a caption word by word."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw

from captioner.visualization.overlay import resize_captioned
from captioner.visualization.sheet import SHEET, draw_heading
from captioner.visualization.style import OverlayStyle
from captioner.visualization.typography import RULE
from captioner.visualization.words import word_image_size, word_images

if TYPE_CHECKING:
    from captioner.types import Caption

LONGEST_SIDE_PX = 512  # of the image in an animation
WORD_SECONDS, STILL_SECONDS = 0.9, 1.6


def gif(frames: Sequence[Image.Image], seconds: Sequence[float]) -> bytes:
    """Return frames of one size as a GIF that repeats for ever.

    All share 256 colours and none is dithered, so that what does not change is stored once.
    """
    quarter = (max(1, frames[0].width // 4), max(1, frames[0].height // 4))
    sample = Image.new("RGB", (quarter[0], quarter[1] * len(frames)))
    for number, frame in enumerate(frames):
        sample.paste(frame.resize(quarter, Image.Resampling.NEAREST), (0, number * quarter[1]))
    palette = sample.quantize(256, method=Image.Quantize.MEDIANCUT)
    indexed = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    file = io.BytesIO()
    indexed[0].save(
        file,
        format="GIF",
        save_all=True,
        append_images=indexed[1:],
        duration=[round(1000 * time) for time in seconds],
        loop=0,
        optimize=False,
    )
    return file.getvalue()


def caption_gif(
    image: Image.Image, caption: Caption, style: OverlayStyle | str | None = None
) -> bytes:
    """Return a GIF of a caption: the image, then one frame a word.

    Raises:
        ImageError: An image of another size than the caption's.
    """
    style = OverlayStyle.of(style)
    frames = list(caption_frames(image, caption, style))
    seconds = [STILL_SECONDS] + [WORD_SECONDS] * (len(frames) - 1)
    if len(frames) > 1:
        seconds[-1] = STILL_SECONDS
    return gif(frames, seconds)


def caption_frames(
    image: Image.Image, caption: Caption, style: OverlayStyle
) -> Iterator[Image.Image]:
    """Yield the image under its caption, then each word's overlay."""
    pictures = list(word_images(image, caption, style, max_side_px=LONGEST_SIDE_PX))
    size = word_image_size(image.size, LONGEST_SIDE_PX)
    plain = resize_captioned(image, caption.geometry, size)
    still = Image.new("RGB", pictures[0].size if pictures else plain.size, "white")
    left = (still.width - plain.width) // 2
    still.paste(plain, (left, 0))
    # A white photo has no edge otherwise; within it, for the picture may be no wider.
    edge = (left, 0, left + plain.width - 1, plain.height - 1)
    ImageDraw.Draw(still).rectangle(edge, outline=RULE)
    for picture in [still, *pictures]:
        yield _under_caption(picture, caption)


def _under_caption(picture: Image.Image, caption: Caption) -> Image.Image:
    """Put the caption and its note above a picture."""
    text = max(15, picture.width // 26)
    layout = replace(SHEET, margin=text, text=round(0.8 * text), title=text)
    width = picture.width - 2 * text
    top = draw_heading(None, "", caption, layout, 0, width) + text
    frame = Image.new("RGB", (picture.width, picture.height + top), "white")
    frame.paste(picture, (0, top))
    draw_heading(frame, "", caption, layout, text // 2, width)
    return frame
