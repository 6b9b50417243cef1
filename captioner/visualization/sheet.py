"""Sheets: an image with one overlay a word, for one caption or for several models' captions.

And the contact sheet of a data set: small images in rows, each with its text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw, ImageOps

from captioner.visualization.labels import (
    WORD_LABEL_HEIGHT,
    caption_note,
    draw_footer,
    draw_word_label,
    footer_height,
)
from captioner.visualization.overlay import scaled_size
from captioner.visualization.style import Layers, OverlayStyle
from captioner.visualization.typography import (
    INK,
    MUTED,
    WARNING,
    fit,
    font,
    is_right_to_left,
    one_line,
    wrap,
)
from captioner.visualization.vector import (
    Page,
    VectorPage,
    new_page,
    paste_photo,
    paste_word,
    pen,
    photo_for,
)

if TYPE_CHECKING:
    from captioner.types import Caption


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

    @property
    def label_height(self) -> int:
        return round(WORD_LABEL_HEIGHT * self.text)

    @property
    def title_line(self) -> int:
        return round(1.3 * self.title)

    @property
    def note_line(self) -> int:
        return round(1.8 * self.text)


_SHEET = _Layout(300 * 225, 600, 184, margin=48, gap=28, text=16, title=34)
_COMPARISON = _Layout(200 * 150, 400, 150, margin=48, gap=20, text=15, title=26)
_NARROWEST_CONTENT = 560  # for the title and the footer of a sheet
_WIDEST_CONTENT = 2200
_SHEET_SHAPE = 1.35  # width to height that the number of columns of a sheet aims at
_FEWEST_ACROSS = 4  # panels in a row of a comparison
_WIDEST_COMPARISON = 1800
# Of a contact sheet: size and lines of a text, gaps; in pixels.
_TILE_TEXT_PX, _TILE_LINES, _TILE_GAP_PX = 13, 3, 8


def attention_sheet(
    image: Image.Image,
    caption: Caption,
    style: OverlayStyle | str | None = None,
    *,
    original_size: tuple[int, int] | None = None,
) -> Image.Image:
    """Draw a caption's sheet: the image, then one overlay a word in reading order.

    Under each overlay stand the word, its probability and its gate; below all, the scale and the
    key to the signs. The cell that hard attention sampled is outlined. Panels have one size in
    pixels and the image's shape, so the sheet does not grow with the image.

    Args:
        image: The upright image that was captioned; it is not changed.
        original_size: Width and height of the photo, where the image is a reduced one.

    Raises:
        ImageError: An image of another size than the caption's.
    """
    return _draw_sheet(image, caption, style, original_size, vector=False)


def vector_sheet(
    image: Image.Image, caption: Caption, style: OverlayStyle | str | None = None
) -> VectorPage:
    """Draw the same as a page to save as PDF or SVG; its overlays are up to twice as fine."""
    return _draw_sheet(image, caption, style, vector=True)


def comparison_sheet(
    image: Image.Image,
    captions: Sequence[tuple[str, Caption]],
    style: OverlayStyle | str | None = None,
    *,
    across: int = 0,
) -> Image.Image:
    """Draw the image, then a row a model: its name, its caption, one overlay a word.

    All rows are on the scale of every picture, so that sharp and flat attention differ at a
    glance. A caption longer than the sheet is wide goes on in a second line.

    Args:
        image: The upright image that was captioned; it is not changed.
        captions: A name and a caption for each model, all of this image.
        across: Panels in a line; 0 takes what suits the longest caption.

    Raises:
        ImageError: An image of another size than a caption's.
        ValueError: No captions.
    """
    return _draw_comparison(image, captions, style, across, vector=False)


def vector_comparison(
    image: Image.Image,
    captions: Sequence[tuple[str, Caption]],
    style: OverlayStyle | str | None = None,
) -> VectorPage:
    """Draw the same as a page to save as PDF or SVG; its overlays are up to twice as fine."""
    return _draw_comparison(image, captions, style, vector=True)


def panel_size(image_size: tuple[int, int], layout: _Layout = _SHEET) -> tuple[int, int]:
    """Return width and height of a panel: the image's shape, one area, no side too long.

    >>> panel_size((4000, 3000)), panel_size((100, 1000))
    ((300, 225), (60, 600))
    """
    width, height = image_size
    scale = min(
        math.sqrt(layout.panel_area / (width * height)), layout.longest_side / max(image_size)
    )
    return scaled_size(image_size, scale)


def _draw_sheet(
    image: Image.Image,
    caption: Caption,
    style: OverlayStyle | str | None,
    original_size: tuple[int, int] | None = None,
    *,
    vector: bool,
) -> Any:
    """Draw the sheet on a new page of pixels or vectors, and return the page."""
    style, layout = OverlayStyle.of(style), _SHEET
    margin, gap, text = layout.margin, layout.gap, layout.text
    size = panel_size(image.size)
    layers = Layers(photo_for(image, caption, size, vector=vector), style)
    slot_width, slot_height = max(size[0], layout.narrowest_slot), size[1] + layout.label_height
    panels = 1 + len(caption.words)
    across = _columns(panels, slot_width, slot_height)
    down = math.ceil(panels / across)
    content = max(across * (slot_width + gap) - gap, _NARROWEST_CONTENT)
    head_height = _heading(None, caption, layout, left=margin, top=margin, width=content)
    panels_top = margin + head_height + text
    footer_top = panels_top + down * (slot_height + gap)
    height = footer_top + footer_height([caption], content, size=text) + margin

    sheet = new_page(content + 2 * margin, height, vector=vector, title=caption.text)
    _heading(sheet, caption, layout, left=margin, top=margin, width=content)
    for slot in range(panels):
        left = margin + slot % across * (slot_width + gap)
        top = panels_top + slot // across * (slot_height + gap)
        if slot:
            _draw_word(sheet, layers, caption, slot - 1, layout, (left, top), size, slot_width)
            continue
        paste_photo(sheet, layers.photo, (left, top, left + size[0], top + size[1]))
        about = _about(original_size or image.size)
        about, face = fit(about, slot_width, size_px=text, smallest_px=text // 2)
        baseline = top + size[1] + round(1.95 * text)
        pen(sheet).text((left, baseline), about, fill=MUTED, font=face, anchor="ls")
    draw_footer(sheet, [caption], style, left=margin, top=footer_top, width=content, size=text)
    return sheet


def _draw_comparison(
    image: Image.Image,
    captions: Sequence[tuple[str, Caption]],
    style: OverlayStyle | str | None,
    across: int = 0,
    *,
    vector: bool,
) -> Any:
    """Draw the comparison on a new page of pixels or vectors, and return the page."""
    if not captions:
        raise ValueError("there is nothing to compare")
    style, layout = OverlayStyle.of(style), _COMPARISON
    margin, gap, text = layout.margin, layout.gap, layout.text
    shown = [caption for _, caption in captions]
    size = panel_size(image.size, layout)
    layers = Layers(photo_for(image, shown[0], size, vector=vector), style)
    slot_width = max(size[0], layout.narrowest_slot) + gap
    slot_height = size[1] + layout.label_height + gap
    most = across or max(_FEWEST_ACROSS, (_WIDEST_COMPARISON + gap) // slot_width)
    longest = max(_FEWEST_ACROSS, *(len(caption.words) for caption in shown))
    across = math.ceil(longest / math.ceil(longest / most))  # lines of one length
    width = across * slot_width - gap
    name_line = round(1.9 * text)
    tops = [margin + size[1] + 2 * gap]  # of each row, and of the footer
    heads = []  # heights of a model's name and caption
    for caption in shown:
        heading = _heading(None, caption, layout, left=margin, top=0, width=width)
        heads.append(name_line + heading + text // 2)
        lines = math.ceil(len(caption.words) / across)
        tops.append(tops[-1] + heads[-1] + lines * slot_height + gap)

    height = tops[-1] + footer_height(shown, width, size=text) + margin
    sheet = new_page(width + 2 * margin, height, vector=vector, title=shown[0].text)
    paste_photo(sheet, layers.photo, (margin, margin, margin + size[0], margin + size[1]))
    corner = (margin + size[0] + gap, margin + size[1])
    draw = pen(sheet)
    draw.text(corner, _about(image.size), fill=MUTED, font=font(text), anchor="ls")
    for (name, caption), head, top in zip(captions, heads, tops, strict=False):
        label, face = fit(one_line(name), width, size_px=text, smallest_px=text // 2)
        draw.text((margin, top + text), label, fill=MUTED, font=face, anchor="ls")
        _heading(sheet, caption, layout, left=margin, top=top + name_line, width=width)
        for index in range(len(caption.words)):
            place = (
                margin + index % across * slot_width,
                top + head + index // across * slot_height,
            )
            _draw_word(sheet, layers, caption, index, layout, place, size, slot_width - gap)
    draw_footer(sheet, shown, style, left=margin, top=tops[-1], width=width, size=text)
    return sheet


def _heading(
    sheet: Page | None, caption: Caption, layout: _Layout, *, left: int, top: int, width: int
) -> int:
    """Draw the caption, and a note under it where there is one; return their height in pixels.

    Without a sheet nothing is drawn.
    """
    face = font(layout.title, bold=True, text=caption.text)
    most = 6 if layout is _SHEET else 3
    lines = wrap(one_line(caption.text) or "(no words)", face, width, max_lines=most)
    note, warning = caption_note(caption)
    if sheet is not None:
        draw = pen(sheet)
        baseline = top + round(0.8 * layout.title)
        x, anchor = (left + width, "rs") if is_right_to_left(caption.text) else (left, "ls")
        for line in lines:
            draw.text((x, baseline), line, fill=INK, font=face, anchor=anchor)
            baseline += layout.title_line
        if note:
            note, small = fit(note, width, size_px=layout.text, smallest_px=layout.text // 2)
            below = top + layout.title_line * len(lines) + layout.text
            colour = WARNING if warning else MUTED
            draw.text((left, below), note, fill=colour, font=small, anchor="ls")
    return layout.title_line * len(lines) + (layout.note_line if note else 0)


def _draw_word(
    sheet: Page,
    layers: Layers,
    caption: Caption,
    index: int,
    layout: _Layout,
    place: tuple[int, int],
    size: tuple[int, int],
    width: int,
) -> None:
    """Draw a word's overlay and its label: panels of `size`, labels of `width`, at `place`."""
    left, top = place
    paste_word(sheet, layers, caption, index, (left, top, left + size[0], top + size[1]))
    draw_word_label(
        sheet, caption, index, left=left, top=top + size[1], width=width, size=layout.text
    )


def _about(size: tuple[int, int]) -> str:
    return f"photo, {size[0]} × {size[1]} px"


def _columns(panels: int, slot_width: int, slot_height: int) -> int:
    """Return panels in a row: the sheet comes near _SHEET_SHAPE with few empty places."""
    gap = _SHEET.gap

    def badness(across: int) -> float:
        down = math.ceil(panels / across)
        shape = across * (slot_width + gap) / (down * (slot_height + gap))
        empty = (across * down - panels) / panels
        return abs(math.log(shape / _SHEET_SHAPE)) + empty

    most = max(1, (_WIDEST_CONTENT + gap) // (slot_width + gap))
    return min(range(1, min(panels, most) + 1), key=badness)


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
