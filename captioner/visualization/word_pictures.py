"""Pictures of single words and their names, animations, and contact sheets of many photos."""

from __future__ import annotations

import io
import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageOps

from captioner.visualization import sheet as sheets
from captioner.visualization.overlay import PixelPage, resize_captioned, scaled_size
from captioner.visualization.style import Layers, OverlayStyle, Style
from captioner.visualization.typography import INK, RULE, font, one_line, wrap

if TYPE_CHECKING:
    from captioner.visualization.caption import Caption

# Of a contact sheet: size and lines of a text, gaps; in pixels.
_TILE_TEXT_PX, _TILE_LINES, _TILE_GAP_PX = 13, 3, 8

# Of pictures of single words, and of animations.
MAX_SIDE_PX = 2048
_MIN_SIDE_PX = 320
_SMALLEST_TEXT = 15
ANIMATION_SIDE_PX = 512  # of the image in an animation, at most
_WORD_MS, _STILL_MS = 900, 1600


def word_images(
    image: Image.Image, caption: Caption, style: Style = None, *, max_side_px: int = MAX_SIDE_PX
) -> Iterator[Image.Image]:
    """Yield one picture a word, in reading order; one at a time, because many may fill the memory.

    The image keeps its shape and its resolution, but the longer side has 320 to max_side_px.
    """
    style = OverlayStyle.of(style)
    photo = _photo_for_words(image, caption, max_side_px)
    size, layers = photo.size, Layers(photo, style)
    canvas_width = max(size[0], _MIN_SIDE_PX)
    text = _text_px(photo)
    place = {"left": text, "width": canvas_width - 2 * text, "size": text}
    below = size[1] + round(sheets.WORD_LABEL_HEIGHT * text) + text
    height = below + sheets.draw_footer(None, [caption], style, top=below, **place) + text
    for index in range(len(caption.words)):
        page = PixelPage(canvas_width, height)
        left = (canvas_width - size[0]) // 2
        page.draw_word(layers, caption, index, (left, 0, left + size[0], size[1]))
        sheets.draw_word_label(page, caption, index, top=size[1], **place)
        sheets.draw_footer(page, [caption], style, top=below, **place)
        yield page.image


def word_names(name: str, words: Sequence[str]) -> list[str]:
    """Return the file names of the pictures of words: NAME.01-word.png, ..., in reading order.

    Of a word, at most 32 letters, digits and hyphens are kept; what is left empty becomes `word`.

    >>> word_names("photo", ["a", "l'été", "../.."])
    ['photo.01-a.png', 'photo.02-l-été.png', 'photo.03-word.png']
    """
    names = []
    for number, word in enumerate(words, start=1):
        kept = "".join(c if c.isalnum() else " " for c in unicodedata.normalize("NFC", word))
        kept = "-".join(kept.split())[:32].rstrip("-") or "word"
        names.append(f"{name}.{number:02d}-{kept}.png")
    return names


def _text_px(photo: Image.Image) -> int:
    """Return the size of the text of a picture: in step with it, but as a narrow one can hold."""
    in_step = round(math.sqrt(photo.width * photo.height) / 30)
    return max(_SMALLEST_TEXT, min(in_step, max(photo.width, _MIN_SIDE_PX) // 20))


def _photo_for_words(image: Image.Image, caption: Caption, max_side_px: int) -> Image.Image:
    longer = max(image.size)
    scale = min(max(longer, _MIN_SIDE_PX), max_side_px) / longer
    return resize_captioned(image, caption.geometry, scaled_size(image.size, scale))


def caption_gif(image: Image.Image, caption: Caption, style: Style = None) -> bytes:
    """Return a GIF that repeats: the caption over the image, then over one picture a word."""
    pictures = list(word_images(image, caption, style, max_side_px=ANIMATION_SIDE_PX))
    plain = _photo_for_words(image, caption, ANIMATION_SIDE_PX)
    still = Image.new("RGB", pictures[0].size if pictures else plain.size, "white")
    left = (still.width - plain.width) // 2
    still.paste(plain, (left, 0))
    # A white photo has no edge otherwise; within it, for the picture may be no wider.
    edge = (left, 0, left + plain.width - 1, plain.height - 1)
    ImageDraw.Draw(still).rectangle(edge, outline=RULE)

    text, margin = max(15, still.width // 26), _text_px(plain)
    layout = replace(sheets.SHEET, margin=margin, text=round(0.8 * text), title=text)
    width = still.width - 2 * margin
    top = sheets.draw_heading(None, "", caption, layout, 0, width) + text
    page = PixelPage(still.width, still.height + top)
    sheets.draw_heading(page, "", caption, layout, text // 2, width)
    frames = []
    for picture in (still, *pictures):
        page.image.paste(picture, (0, top))
        frames.append(page.image.copy())
    # All share 256 colours and none is dithered, so that what does not change is stored once.
    quarter = (max(1, page.image.width // 4), max(1, page.image.height // 4))
    sample = Image.new("RGB", (quarter[0], quarter[1] * len(frames)))
    for number, frame in enumerate(frames):
        sample.paste(frame.resize(quarter, Image.Resampling.NEAREST), (0, number * quarter[1]))
    palette = sample.quantize(256, method=Image.Quantize.MEDIANCUT)
    colours = np.array(palette.getpalette()).reshape(-1, 3)
    colours[(colours > 247).all(1)] = 255  # white stays white
    palette.putpalette(colours.flatten().tolist())
    first, *others = (f.quantize(palette=palette, dither=Image.Dither.NONE) for f in frames)
    milliseconds = [_STILL_MS, *[_WORD_MS] * (len(others) - 1), _STILL_MS][: len(frames)]
    options = {"save_all": True, "append_images": others, "loop": 0, "optimize": False}
    file = io.BytesIO()
    first.save(file, format="GIF", duration=milliseconds, **options)
    return file.getvalue()


def contact_sheet(
    images: Sequence[tuple[Image.Image, str]], *, across: int = 6, tile_px: int = 200
) -> Image.Image:
    """Draw images with their texts on white: rows of `across`, the longer side tile_px."""
    gap, line_px = _TILE_GAP_PX, round(1.3 * _TILE_TEXT_PX)
    columns = min(across, max(1, len(images)))
    rows = math.ceil(len(images) / columns)
    tallest = max((round(tile_px * i.height / max(i.size)) for i, _ in images), default=tile_px)
    width, height = tile_px + gap, tallest + _TILE_LINES * line_px + 2 * gap
    sheet = Image.new("RGB", (columns * width + gap, rows * height + gap), "white")
    draw, face = ImageDraw.Draw(sheet), font(_TILE_TEXT_PX)
    for index, (image, text) in enumerate(images):
        left, top = gap + index % columns * width, gap + index // columns * height
        sheet.paste(ImageOps.pad(image, (tile_px, tallest), color="#e6e9ee"), (left, top))
        for line, words in enumerate(wrap(one_line(text), face, tile_px, max_lines=_TILE_LINES)):
            draw.text((left, top + tallest + gap // 2 + line * line_px), words, font=face, fill=INK)
    return sheet
