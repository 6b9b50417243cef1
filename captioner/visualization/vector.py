"""A page of vector graphics with the drawing calls of Pillow, saved as PDF or SVG.

So one layout serves the PNG and the figure of a paper. Text, bars, rules and lines of equal
attention are vectors. The photo is in the file once, however many words are drawn over it: where a
word attends is a clipping path, or a small image with transparency.
"""

from __future__ import annotations

import io
import math
import re
import threading
import warnings
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from captioner.visualization.arrays import data_url
from captioner.visualization.overlay import (
    Box,
    casing_px,
    draw_marks,
    line_unit,
    resize_captioned,
    scaled_size,
    word_heat,
    word_panel,
)
from captioner.visualization.style import (
    CASING_COLOUR,
    CASING_OPACITY,
    LINE_COLOUR,
    MIN_LINE_PX,
    OCTAVES,
    Layers,
    OverlayStyle,
    scale_octaves,
)
from captioner.visualization.typography import RULE

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.path import Path as Outline

    from captioner.types import Caption

_RC_CONTEXT = threading.Lock()  # matplotlib's settings are those of all threads
_PX_PER_INCH = 144  # a sheet is then about as wide as a page of paper
_PHOTO_PIXELS = 200_000  # of the photo on a page, about 300 dots an inch
_MAP_STEP_PX = 5  # between the points from which the outlines of a map are made
_BANDS = 10  # steps of transparency over the scale


class VectorPage:
    """A white page; all coordinates in pixels from its upper left corner."""

    def __init__(self, width: int, height: int, *, title: str) -> None:
        from matplotlib.figure import Figure  # slow to import: only for such pages

        self.width, self.height, self.title = width, height, title
        self.figure: Figure = Figure(figsize=(width / _PX_PER_INCH, height / _PX_PER_INCH))
        self._axes = self.figure.add_axes((0, 0, 1, 1))
        self._axes.set(xlim=(0, width), ylim=(height, 0))
        self._axes.set_axis_off()
        self._images: dict[int, tuple[Image.Image, np.ndarray]] = {}  # by the image's id

    def text(
        self,
        xy: tuple[float, float],
        text: str,
        *,
        fill: str,
        font: ImageFont.FreeTypeFont,
        anchor: Literal["ls", "ms", "rs", "lm", "rm"],
    ) -> None:
        """Write text as ImageDraw does; anchor: left, middle, right; s baseline, m middle."""
        from matplotlib.font_manager import FontProperties
        from matplotlib.text import Text

        x, y = xy
        if anchor[1] == "m":
            ascent, descent = font.getmetrics()
            y += (ascent - descent) / 2
        face = FontProperties(fname=str(font.path), size=font.size * 72 / _PX_PER_INCH)
        across = {"l": "left", "m": "center", "r": "right"}[anchor[0]]
        self._add(
            Text(x, y, text, color=fill, ha=across, va="baseline", font=face, parse_math=False)
        )

    def rectangle(
        self,
        xy: tuple[float, float, float, float],
        *,
        fill: str | None = None,
        outline: str | None = None,
        width: int = 1,
    ) -> None:
        """Draw a box whose corner pixels are both inside, as ImageDraw does."""
        from matplotlib.patches import Rectangle

        x0, y0, x1, y1 = xy
        if fill:
            self._add(Rectangle((x0, y0), x1 + 1 - x0, y1 + 1 - y0, fc=fill, lw=0))
        if outline:  # its line lies inside the box
            inner = (x0 + width / 2, y0 + width / 2), x1 + 1 - x0 - width, y1 + 1 - y0 - width
            self._add(Rectangle(*inner, fill=False, ec=outline, lw=_points(width)))

    def ellipse(self, xy: tuple[float, float, float, float], *, fill: str) -> None:
        """Fill the ellipse in a box."""
        from matplotlib.patches import Ellipse

        x0, y0, x1, y1 = xy
        self._add(Ellipse(((x0 + x1) / 2, (y0 + y1) / 2), x1 - x0, y1 - y0, fc=fill, lw=0))

    def line(self, xy: tuple[float, ...], *, fill: str, width: float) -> None:
        """Draw a line of `width` pixels through points x0, y0, x1, y1, ..."""
        from matplotlib.lines import Line2D

        self._add(Line2D(xy[::2], xy[1::2], color=fill, lw=_points(width), solid_capstyle="butt"))

    def paste(
        self,
        image: Image.Image,
        box: Box,
        *,
        alpha: float = 1.0,
        clip: Outline | None = None,
    ) -> None:
        """Place an image, of any resolution, in a box; the same object is in the file once."""
        self._images.setdefault(id(image), (image, np.asarray(image.convert("RGBA"))[::-1]))
        picture = _picture(image, self._images[id(image)][1], box, alpha)
        self._add(picture)
        if clip is not None:
            picture.set_clip_on(True)
            picture.set_clip_path(clip, self._axes.transData)

    def draw_word(self, layers: Layers, caption: Caption, index: int, box: Box) -> None:
        """Draw the map of a word over the photo in a box, with its marks."""
        style, (left, top, right, bottom) = layers.style, box
        size = (right - left) // _MAP_STEP_PX + 1, (bottom - top) // _MAP_STEP_PX + 1
        octaves = scale_octaves(word_heat(caption, index, size, smooth=style.smooth))
        levels = (octaves * (255 / OCTAVES) + 0.5).astype(np.uint8)
        self.paste(layers.base, box)
        if layers.colours is not None:
            veil = np.dstack([layers.colours[levels], layers.alpha[levels]])
            small = Image.fromarray(veil)
            # Finer, because some programs show the pixels of an image as squares.
            self.paste(small.resize((2 * size[0], 2 * size[1]), Image.Resampling.BICUBIC), box)
        else:
            covered = 0.0
            for band in range(_BANDS):
                wanted = float(layers.alpha[round(255 * (band + 0.5) / _BANDS)]) / 255
                if wanted > covered + 1e-3:
                    outline = _outline(octaves, OCTAVES * band / _BANDS, box, filled=True)
                    if outline is None:
                        break
                    step = (wanted - covered) / (1 - covered)
                    self.paste(layers.photo, box, alpha=step, clip=outline)
                    covered = wanted
        self._draw_lines(scale_octaves(word_heat(caption, index, size)), style, box)
        draw_marks(self, caption, index, box)

    def _draw_lines(self, octaves: np.ndarray, style: OverlayStyle, box: Box) -> None:
        """Draw lines of equal attention on their dark seams."""
        from matplotlib.patches import PathPatch

        unit = line_unit((box[2] - box[0], box[3] - box[1]))
        drawn = []
        for heat, width in style.lines:
            outline = _outline(octaves, math.log2(heat) + 1, box, filled=False)
            if outline is not None:
                drawn.append((outline, max(MIN_LINE_PX, width * unit)))
        for grown, colour, opacity in (
            (2 * casing_px(unit), CASING_COLOUR, CASING_OPACITY),
            (0, LINE_COLOUR, 1),
        ):
            for outline, width in drawn:
                self._add(
                    PathPatch(
                        outline, fill=False, ec=colour, lw=_points(width + grown), alpha=opacity
                    )
                )

    def to_bytes(self, kind: str) -> bytes:
        """Return the page as a PDF or SVG file: the same page, the same bytes."""
        pictures: list[Any] = [
            each for each in self._axes.get_children() if hasattr(each, "by_name")
        ]
        for picture in pictures:
            picture.by_name = kind == "svg"
        with warnings.catch_warnings():
            # Of letters that no font has: `font` says so, once.
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            content = figure_bytes(self.figure, kind, title=self.title, facecolor="white")
        if kind == "svg":
            images = {picture.name: picture.image for picture in pictures}
            content = _with_images(content.decode(), images).encode()
        return content

    def _add(self, artist: Any) -> None:
        """Add an artist above all before it."""
        artist.set_zorder(len(self._axes.get_children()))
        artist.set_clip_on(False)
        self._axes.add_artist(artist)


def _picture(image: Image.Image, pixels: np.ndarray, box: Box, alpha: float) -> Any:
    """Return an artist of matplotlib that draws an image in a box.

    Its own images (imshow) are written once for every time that they are drawn.
    """
    from matplotlib.artist import Artist
    from matplotlib.transforms import Affine2D

    class Picture(Artist):
        """An image; in an SVG only its name, for `_with_images`, if `by_name`."""

        by_name = False

        def __init__(self) -> None:
            super().__init__()
            self.image, self.name = image, f"image{id(image)}"

        def draw(self, renderer: Any) -> None:
            left, top, right, bottom = box
            x0, y0 = self.get_transform().transform((left, bottom))
            x1, y1 = self.get_transform().transform((right, top))
            context = renderer.new_gc()
            self._set_gc_clip(context)  # type: ignore[attr-defined]
            context.set_alpha(alpha)
            if not renderer.option_scale_image():  # pixels, as of a screen
                size = max(1, round(x1 - x0)), max(1, round(y1 - y0))
                drawn = np.array(image.convert("RGBA").resize(size))[::-1]
                drawn[..., 3] = drawn[..., 3] * alpha
                renderer.draw_image(context, x0, y0, drawn)
                return
            shown = pixels
            if self.by_name:
                context.set_gid(self.name)
                shown = np.zeros((1, 1, 4), dtype=np.uint8)
            renderer.draw_image(context, x0, y0, shown, Affine2D().scale(x1 - x0, y1 - y0))

    return Picture()


def _with_images(svg: str, images: dict[str, Image.Image]) -> str:
    """Return an SVG in which each named image stands once and is used by its name."""
    numbers = {name: f"picture{number}" for number, name in enumerate(images)}

    def used(match: re.Match[str]) -> str:
        kept = re.findall(r'(?:opacity|transform)="[^"]*"', match[0])
        return f'<use xlink:href="#{numbers[match[1]]}" {" ".join(kept)}/>'

    svg = re.sub(r'<image [^>]*?id="(image\d+)"[^>]*?/>', used, svg)
    # A tenth of a point is enough for outlines, and lines after each other need no letter.
    svg = re.sub(
        r' d="[^"]*"',
        lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]).replace(" \nL ", " "),
        svg,
    )
    defined = "\n".join(
        f'<image id="{numbers[name]}" width="1" height="1" preserveAspectRatio="none" '
        f'xlink:href="{data_url(image.transpose(Image.Transpose.FLIP_TOP_BOTTOM))}"/>'
        for name, image in images.items()
    )
    return svg.replace("<defs>", f"<defs>\n{defined}\n", 1)


def _points(pixels: float) -> float:
    return pixels * 72 / _PX_PER_INCH


def _outline(octaves: np.ndarray, least: float, box: Box, *, filled: bool) -> Outline | None:
    """Return the line around where a map has `least` octaves; None if there is no such place.

    Args:
        octaves: Of the map that lies over the box.
        filled: Close the outline along the edges of the box.
    """
    from contourpy import FillType, LineType, contour_generator
    from matplotlib.path import Path as Outline

    left, top, right, bottom = box
    rows, columns = octaves.shape
    contours = contour_generator(
        left + (right - left) * (np.arange(-1, columns + 1) + 0.5).clip(0, columns) / columns,
        top + (bottom - top) * (np.arange(-1, rows + 1) + 0.5).clip(0, rows) / rows,
        np.pad(octaves, 1, mode="edge"),
        line_type=LineType.ChunkCombinedCode,
        fill_type=FillType.ChunkCombinedCode,
    )
    found: Any = contours.filled(least - 1e-6, np.inf) if filled else contours.lines(least)
    points, codes = found[0][0], found[1][0]
    return None if points is None else Outline(points.round(1), codes)


def figure_bytes(figure: Figure, kind: str, *, title: str, **options: Any) -> bytes:
    """Return a figure as PNG, PDF or SVG: the same figure, the same bytes.

    Args:
        options: Of `Figure.savefig`.
    """
    import matplotlib

    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind, {})
    # 42: TrueType, which journals ask for. Letters of an SVG are shapes, for want of the font.
    settings: dict[Any, Any] = {
        "pdf.fonttype": 42,
        "svg.fonttype": "path",
        "svg.hashsalt": "captioner",
    }
    file = io.BytesIO()
    with _RC_CONTEXT, matplotlib.rc_context(settings):
        figure.savefig(file, format=kind, metadata={"Title": title, **undated}, **options)
    return file.getvalue()


Page: TypeAlias = "Image.Image | VectorPage"


def pen(page: Page) -> Any:
    """Return the object that draws on the page: text, rectangle, line."""
    return ImageDraw.Draw(page) if isinstance(page, Image.Image) else page


def new_page(width: int, height: int, *, vector: bool, title: str = "") -> Any:
    """Return a white page of vectors (for PDF and SVG) or of pixels."""
    if vector:
        return VectorPage(width, height, title=title)
    return Image.new("RGB", (width, height), "white")


def paste_photo(page: Page, photo: Image.Image, box: Box) -> None:
    """Paste a photo into a box, with a hairline around it: a white one has no edge otherwise."""
    left, top, right, bottom = box
    pen(page).rectangle((left - 1, top - 1, right, bottom), fill=RULE)
    page.paste(photo, box)


def paste_word(page: Page, layers: Layers, caption: Caption, index: int, box: Box) -> None:
    """Draw the map of a word over its photo in a box."""
    if isinstance(page, VectorPage):
        page.draw_word(layers, caption, index, box)
    else:
        page.paste(word_panel(layers, caption, index), box)


def photo_for(
    image: Image.Image, caption: Caption, size: tuple[int, int], *, vector: bool
) -> Image.Image:
    """Return the photo for panels of this (width, height): of just this size, or finer for vectors.

    On a vector page it has at most 256 colours, because matplotlib then compresses it well.

    Raises:
        ImageError: An image of another size than the caption's.
    """
    if not vector:
        return resize_captioned(image, caption.geometry, size)
    scale = min(1.0, math.sqrt(_PHOTO_PIXELS / (image.width * image.height)))
    fine = resize_captioned(image, caption.geometry, scaled_size(image.size, scale))
    return fine.quantize(palette=fine.quantize(256)).convert("RGB")
