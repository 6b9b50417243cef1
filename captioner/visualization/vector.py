"""A page of vector graphics with the drawing calls of Pillow, saved as PDF or SVG.

The photo is in the file once. matplotlib makes this module slow to import.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Ellipse, Rectangle
from matplotlib.text import Text
from matplotlib.transforms import Affine2D
from PIL import Image
from PIL.ImageFont import FreeTypeFont

from captioner.visualization import style as styles
from captioner.visualization.caption import Caption
from captioner.visualization.figures import figure_bytes
from captioner.visualization.overlay import Box, attention_heat, draw_marks, line_widths
from captioner.visualization.page import data_url
from captioner.visualization.style import Layers, OverlayStyle, scale_levels, scale_octaves

_PX_PER_INCH = 144  # a sheet is then about as wide as a page of paper
_MAP_STEP_PX = 3  # of the page, between the points at which a map is computed


class VectorPage:
    """A white page; all coordinates in pixels from its upper left corner."""

    def __init__(self, width: int, height: int, *, title: str) -> None:
        self.title = title
        self.figure = Figure(figsize=(width / _PX_PER_INCH, height / _PX_PER_INCH))
        self._axes = self.figure.add_axes((0, 0, 1, 1))
        self._axes.set(xlim=(0, width), ylim=(height, 0))
        self._axes.set_axis_off()
        self._pictures: dict[int, _Picture] = {}  # the first of each image, by the image's id

    def text(
        self, xy: tuple[float, float], text: str, *, fill: str, font: FreeTypeFont, anchor: str
    ) -> None:
        """Write text as ImageDraw does; anchor: left, middle, right; s baseline, m middle."""
        x, y = xy
        if anchor[1] == "m":
            ascent, descent = font.getmetrics()
            y += (ascent - descent) / 2
        face = FontProperties(fname=str(font.path), size=_points(font.size))
        options: Any = {"ha": {"l": "left", "m": "center", "r": "right"}[anchor[0]]}
        self._add(Text(x, y, text, color=fill, font=face, parse_math=False, **options))

    def rectangle(
        self, xy: tuple[float, ...], *, fill: str = "", outline: str = "", width: int = 1
    ) -> None:
        """Draw a box whose corner pixels are both inside, as ImageDraw does."""
        x0, y0, x1, y1 = xy
        if fill:
            self._add(Rectangle((x0, y0), x1 + 1 - x0, y1 + 1 - y0, fc=fill, lw=0))
        if outline:  # its line lies inside the box
            inner = (x0 + width / 2, y0 + width / 2), x1 + 1 - x0 - width, y1 + 1 - y0 - width
            self._add(Rectangle(*inner, fill=False, ec=outline, lw=_points(width)))

    def ellipse(self, xy: tuple[float, ...], *, fill: str) -> None:
        """Fill the ellipse in a box."""
        x0, y0, x1, y1 = xy
        self._add(Ellipse(((x0 + x1) / 2, (y0 + y1) / 2), x1 - x0, y1 - y0, fc=fill, lw=0))

    def line(self, xy: tuple[float, ...], *, fill: str, width: float) -> None:
        """Draw a line of `width` pixels through points x0, y0, x1, y1, ..."""
        self._add(Line2D(xy[::2], xy[1::2], color=fill, lw=_points(width), solid_capstyle="butt"))

    def paste(self, image: Image.Image, box: Box, mask: Image.Image | None = None) -> None:
        """Place an image in a box; the same object is in the file once.

        A grey mask says how strongly it covers what is below. Both may have any resolution.
        """
        name = f"picture{len(self._axes.get_children())}"
        picture = _Picture(image, box, mask, self._pictures.get(id(image)), name)
        self._pictures.setdefault(id(image), picture)
        self._add(picture)

    def draw_word(self, layers: Layers, caption: Caption, index: int, box: Box) -> None:
        """Draw the map of a word over the photo in a box, with its marks."""
        style = layers.style
        size = (box[2] - box[0]) // _MAP_STEP_PX + 1, (box[3] - box[1]) // _MAP_STEP_PX + 1
        smooth_heat, heat = (
            attention_heat(caption.maps[index], caption.geometry, size, smooth=smooth)
            for smooth in (True, style.smooth)
        )
        above, alpha = layers.above(scale_levels(scale_octaves(heat)))
        self.paste(layers.base, box)
        if above is not layers.base:  # `contour` has lines alone
            self.paste(above, box, alpha)
        self._draw_lines(scale_octaves(smooth_heat), style, box)
        draw_marks(self, caption, index, box)

    def _draw_lines(self, octaves: np.ndarray, style: OverlayStyle, box: Box) -> None:
        """Draw lines of equal attention on their dark seams."""
        left, top, right, bottom = box
        unit, seam = line_widths((right - left, bottom - top))
        widths = {scale_octaves(heat): wide * unit for heat, wide in style.lines}
        levels = [level for level in widths if octaves.min() < level < octaves.max()]
        if not levels:
            return
        rows, columns = octaves.shape
        x = left + (right - left) * (np.arange(-1, columns + 1) + 0.5).clip(0, columns) / columns
        y = top + (bottom - top) * (np.arange(-1, rows + 1) + 0.5).clip(0, rows) / rows
        grid = x, y, np.pad(octaves, 1, mode="edge")
        wide = [max(styles.MIN_LINE_PX, widths[level]) for level in levels]
        for grown, colour, alpha in (
            (2 * seam, styles.CASING_COLOUR, styles.CASING_OPACITY),
            (0, styles.LINE_COLOUR, 1),
        ):
            self._axes.contour(
                *(*grid, levels),
                colors=colour,
                linewidths=[_points(px + grown) for px in wide],
                alpha=alpha,
                zorder=len(self._axes.get_children()),
            )

    def to_bytes(self, kind: str) -> bytes:
        """Return the page as a PDF or SVG file."""
        return figure_bytes(self.figure, kind, title=self.title, facecolor="white")

    def _add(self, artist: Artist) -> None:
        """Add an artist above all before it."""
        artist.set_zorder(len(self._axes.get_children()))
        artist.set_clip_on(False)
        self._axes.add_artist(artist)


class _Picture(Artist):
    """An image in a box, with `earlier` the first picture of the same image on the page if any.

    The images of matplotlib (imshow) are in a file once for every time that they are drawn.
    """

    def __init__(
        self,
        image: Image.Image,
        box: Box,
        mask: Image.Image | None,
        earlier: _Picture | None,
        name: str,
    ) -> None:
        super().__init__()
        self.image, self.box, self.mask, self.earlier, self.name = image, box, mask, earlier, name
        if earlier is not None and mask is None:
            self.pixels: np.ndarray = earlier.pixels  # by which matplotlib knows it again
            return
        pixels = image.convert("RGBA")
        if mask is not None:
            size = max(image.size, mask.size)
            alpha = mask.resize(size, Image.Resampling.BICUBIC)
            pixels = Image.new("RGBA", size)
            pixels.paste(image.resize(size), mask=alpha.point(lambda value: 255 * (value > 0)))
            pixels.putalpha(alpha)
        self.pixels = np.array(pixels)[::-1]

    def draw(self, renderer: Any) -> None:
        """Draw the image, as matplotlib calls it."""
        left, top, right, bottom = self.box
        x0, y0 = self.get_transform().transform((left, bottom))
        x1, y1 = self.get_transform().transform((right, top))
        width, height = x1 - x0, y1 - y0
        if hasattr(renderer, "writer"):
            corner = f"{x0:g} {renderer.height - y1:g}"
            self._write(renderer.writer, f"translate({corner}) scale({width:g} {height:g})")
        elif renderer.option_scale_image():  # a PDF
            transform = Affine2D().scale(width, height)
            renderer.draw_image(renderer.new_gc(), x0, y0, self.pixels, transform)
        else:  # pixels, as of a screen
            size = max(1, round(width)), max(1, round(height))
            pixels = np.array(Image.fromarray(self.pixels).resize(size))
            renderer.draw_image(renderer.new_gc(), x0, y0, pixels)

    def _write(self, svg: Any, transform: str) -> None:
        """Write the image to an SVG: as a new one, or as one that stands in it already."""
        unit = {"width": "1", "height": "1", "preserveAspectRatio": "none"}
        svg.start("defs")
        if self.earlier is None:
            attributes = {"id": self.name, "xlink:href": data_url(self.image), **unit}
            svg.element("image", attrib=attributes)
        masked = {}
        if self.mask is not None:
            masked = {"mask": f"url(#mask-{self.name})"}
            svg.start("mask", id=f"mask-{self.name}")
            svg.element("image", attrib={"xlink:href": data_url(self.mask), **unit})
            svg.end("mask")
        svg.end("defs")
        name = (self.earlier or self).name
        svg.element("use", attrib={"xlink:href": f"#{name}", "transform": transform, **masked})


def _points(pixels: float) -> float:
    return pixels * 72 / _PX_PER_INCH
