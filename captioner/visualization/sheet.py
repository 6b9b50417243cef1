"""Sheets of captions, pictures of single words, animations, contact sheets of data sets."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from PIL import Image, ImageDraw, ImageOps

from captioner.visualization.labels import (
    WORD_LABEL_HEIGHT,
    Page,
    caption_note,
    draw_footer,
    draw_word_label,
)
from captioner.visualization.overlay import PixelPage, resize_captioned, scaled_size
from captioner.visualization.style import Layers, OverlayStyle, Style
from captioner.visualization.typography import (
    INK,
    MUTED,
    RULE,
    WARNING,
    fit,
    font,
    one_line,
    wrap,
)

if TYPE_CHECKING:
    from captioner.visualization.caption import Caption
    from captioner.visualization.vector import VectorPage

Named: TypeAlias = "Sequence[tuple[str, Caption]]"  # by models, all of one image


@dataclass(frozen=True)
class _Layout:
    """Sizes in pixels that a kind of sheet is laid out by."""

    panel_area: int  # of every image, whatever its shape
    longest_side: int  # of a panel
    narrowest_slot: int  # a word, its bars and their numbers need this much
    margin: int
    gap: int
    text: int
    title: int
    widest: int  # of all panels in a row
    title_lines: int  # at most


SHEET = _Layout(
    264 * 198, 528, 168, margin=42, gap=24, text=15, title=30, widest=1960, title_lines=6
)
_COMPARISON = _Layout(
    200 * 150, 400, 150, margin=48, gap=20, text=15, title=26, widest=1800, title_lines=3
)
_VECTOR_PIXELS = 100_000  # of the photo on a vector page, about 200 dots an inch
_NARROWEST_CONTENT = 520  # for the title and the footer of a sheet
_SHEET_SHAPE = 1.35  # width to height that the number of columns of a sheet aims at
# Of a contact sheet: size and lines of a text, gaps; in pixels.
_TILE_TEXT_PX, _TILE_LINES, _TILE_GAP_PX = 13, 3, 8

# Of pictures of single words, and of animations.
MAX_SIDE_PX = 2048
_MIN_SIDE_PX = 320
_SMALLEST_TEXT = 15
ANIMATION_SIDE_PX = 512  # of the image in an animation, at most
_WORD_MS, _STILL_MS = 900, 1600


def attention_sheet(image: Image.Image, caption: Caption, style: Style = None) -> Image.Image:
    """Draw a caption's sheet: the image, then one overlay a word with its probability and gate.

    Panels have one size in pixels and the image's shape, so the sheet does not grow with the image,
    which is the upright one that was captioned.
    """
    return _draw(image, [("", caption)], style)


def comparison_sheet(image: Image.Image, captions: Named, style: Style = None) -> Image.Image:
    """Draw a sheet of several models: of each its name, then as `attention_sheet`."""
    return _draw(image, captions, style)


def vector_sheet(image: Image.Image, captions: Named, style: Style = None) -> VectorPage:
    """Draw a sheet to save as PDF or SVG: of one caption without a name, or a comparison."""
    return _draw(image, captions, style, vector=True)


def _draw(image: Image.Image, named: Named, style: Style, *, vector: bool = False) -> Any:
    """Draw captions on a new page of pixels or vectors, and return the image or the page."""
    style = OverlayStyle.of(style)
    layout = _COMPARISON if named[0][0] else SHEET
    margin, gap, text = layout.margin, layout.gap, layout.text
    captions = [caption for _, caption in named]
    pixels = image.width * image.height
    scale = min(math.sqrt(layout.panel_area / pixels), layout.longest_side / max(image.size))
    size = shown = scaled_size(image.size, scale)
    if vector:  # finer than the panels
        shown = scaled_size(image.size, min(1.0, math.sqrt(_VECTOR_PIXELS / pixels)))
    photo = resize_captioned(image, captions[0].geometry, shown)
    if vector:  # few colours, because matplotlib then compresses it well
        photo = photo.quantize(255, method=Image.Quantize.FASTOCTREE).convert("RGB")
    layers = Layers(photo, style)
    label_width = max(size[0], layout.narrowest_slot)
    slot = label_width + gap, size[1] + round(WORD_LABEL_HEIGHT * text) + gap
    across = _columns(1 + max(len(caption.words) for caption in captions), slot, layout)
    width = max(across * slot[0] - gap, _NARROWEST_CONTENT)
    tops, heads = [margin], []  # of each model, the last of the footer; heights of the headings
    for name, caption in named:
        heads.append(draw_heading(None, name, caption, layout, 0, width) + text)
        lines = math.ceil((1 + len(caption.words)) / across)
        tops.append(tops[-1] + heads[-1] + lines * slot[1] + (gap if name else 0))
    footer = {"left": margin, "top": tops[-1], "width": width, "size": text}
    height = tops[-1] + draw_footer(None, captions, style, **footer) + margin

    page: Page
    if vector:
        from captioner.visualization.vector import VectorPage  # slow to import

        page = VectorPage(width + 2 * margin, height, title=captions[0].text)
    else:
        page = PixelPage(width + 2 * margin, height)
    about = f"photo, {image.width} × {image.height} px"
    about, face = fit(about, label_width, size_px=text, smallest_px=text // 2)
    for (name, caption), head, top in zip(named, heads, tops, strict=False):
        draw_heading(page, name, caption, layout, top, width)
        for number in range(1 + len(caption.words)):
            left = margin + number % across * slot[0]
            upper = top + head + number // across * slot[1]
            box = left, upper, left + size[0], upper + size[1]
            if number:
                page.draw_word(layers, caption, number - 1, box)
                place = {"left": left, "top": box[3], "width": label_width, "size": text}
                draw_word_label(page, caption, number - 1, **place)
            else:
                # A hairline around it: a white photo has no edge otherwise.
                page.rectangle((left - 1, upper - 1, box[2], box[3]), fill=RULE)
                page.paste(photo, box)
                baseline = box[3] + round(1.95 * text)
                page.text((left, baseline), about, fill=MUTED, font=face, anchor="ls")
    draw_footer(page, captions, style, **footer)
    return page.image if isinstance(page, PixelPage) else page


def draw_heading(
    page: Page | None, name: str, caption: Caption, layout: _Layout, top: int, width: int
) -> int:
    """Draw a model's name if any, its caption and the note, if on a page; return their height."""
    left, text, title_line = layout.margin, layout.text, round(1.3 * layout.title)
    name_line = round(1.9 * text) if name else 0
    face = font(layout.title, bold=True, text=caption.text)
    words = one_line(caption.text) or "(no words)"
    lines = wrap(words, face, width, max_lines=layout.title_lines)
    note, warning = caption_note(caption)
    height = name_line + title_line * len(lines)
    if page is not None:
        label, small = fit(one_line(name), width, size_px=text, smallest_px=text // 2)
        page.text((left, top + text), label, fill=MUTED, font=small, anchor="ls")
        for number, line in enumerate(lines):
            y = top + name_line + round(0.8 * layout.title) + number * title_line
            page.text((left, y), line, fill=INK, font=face, anchor="ls")
        shown, small = fit(note, width, size_px=text, smallest_px=text // 2)
        colour = WARNING if warning else MUTED
        page.text((left, top + height + text), shown, fill=colour, font=small, anchor="ls")
    return height + (round(1.8 * text) if note else 0)


def _columns(panels: int, slot: tuple[int, int], layout: _Layout) -> int:
    """Return panels in a row: a sheet comes near _SHEET_SHAPE with few empty places."""
    most = max(1, (layout.widest + layout.gap) // slot[0])
    if layout is _COMPARISON:  # rows as long as its width allows, and of one length
        return math.ceil(panels / math.ceil(panels / most))

    def badness(across: int) -> float:
        down = math.ceil(panels / across)
        shape = across * slot[0] / (down * slot[1])
        empty = (across * down - panels) / panels
        return abs(math.log(shape / _SHEET_SHAPE)) + empty

    return min(range(1, min(panels, most) + 1), key=badness)


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
    # In step with the picture, but no wider than a narrow one can hold.
    text = max(_SMALLEST_TEXT, min(round(math.sqrt(size[0] * size[1]) / 30), canvas_width // 20))
    place = {"left": text, "width": canvas_width - 2 * text, "size": text}
    below = size[1] + round(WORD_LABEL_HEIGHT * text) + text
    height = below + draw_footer(None, [caption], style, top=below, **place) + text
    for index in range(len(caption.words)):
        page = PixelPage(canvas_width, height)
        left = (canvas_width - size[0]) // 2
        page.draw_word(layers, caption, index, (left, 0, left + size[0], size[1]))
        draw_word_label(page, caption, index, top=size[1], **place)
        draw_footer(page, [caption], style, top=below, **place)
        yield page.image


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

    text = max(15, still.width // 26)
    layout = replace(SHEET, margin=text, text=round(0.8 * text), title=text)
    width = still.width - 2 * text
    top = draw_heading(None, "", caption, layout, 0, width) + text
    page = PixelPage(still.width, still.height + top)
    draw_heading(page, "", caption, layout, text // 2, width)
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
            place = (left, top + tallest + gap // 2 + line * line_px)
            draw.text(place, words, font=face, fill=INK)
    return sheet
