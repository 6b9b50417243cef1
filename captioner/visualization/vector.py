"""A page of vector graphics with the drawing calls of Pillow, saved as PDF or SVG.

So one layout serves the PNG and the figure of a paper. Text, bars and rules are vectors; overlays
are pictures in it, as fine as they were given.
"""

from __future__ import annotations

import io
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from captioner.files import save_bytes
from captioner.visualization.typography import RULE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RC_CONTEXT = threading.Lock()  # matplotlib's settings are those of all threads
_PX_PER_INCH = 144  # a sheet is then about as wide as a page of paper


class VectorPage:
    """A white page; all coordinates in pixels from its upper left corner."""

    def __init__(self, width: int, height: int, *, title: str) -> None:
        from matplotlib.figure import Figure  # slow to import: only for such pages

        self.width, self.height, self.title = width, height, title
        self._figure = Figure(figsize=(width / _PX_PER_INCH, height / _PX_PER_INCH))
        self._axes = self._figure.add_axes((0, 0, 1, 1))
        self._axes.set_axis_off()
        self._drawn = 0  # so that what is drawn later lies above

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

        x, y = xy
        if anchor[1] == "m":
            ascent, descent = font.getmetrics()
            y += (ascent - descent) / 2
        self._axes.text(
            x,
            y,
            text,
            color=fill,
            ha={"l": "left", "m": "center", "r": "right"}[anchor[0]],
            va="baseline",
            fontproperties=FontProperties(fname=str(font.path), size=font.size * 72 / _PX_PER_INCH),
            parse_math=False,
            zorder=self._above(),
        )

    def rectangle(self, xy: tuple[float, float, float, float], *, fill: str) -> None:
        """Fill a box whose corner pixels are both inside, as ImageDraw does."""
        from matplotlib.patches import Rectangle

        x0, y0, x1, y1 = xy
        box = Rectangle((x0, y0), x1 + 1 - x0, y1 + 1 - y0, fc=fill, lw=0, zorder=self._above())
        self._axes.add_patch(box)

    def line(self, xy: tuple[float, float, float, float], *, fill: str, width: int) -> None:
        """Draw a line of `width` pixels."""
        from matplotlib.lines import Line2D

        x0, y0, x1, y1 = xy
        points = width * 72 / _PX_PER_INCH
        self._axes.add_line(Line2D((x0, x1), (y0, y1), color=fill, lw=points, zorder=self._above()))

    def paste(self, image: Image.Image, box: tuple[int, int, int, int]) -> None:
        """Place a picture, of any resolution, in a box (left, top, right, bottom)."""
        left, top, right, bottom = box
        self._axes.imshow(
            np.asarray(image.convert("RGB")),
            extent=(left, right, bottom, top),
            aspect="auto",
            interpolation="none",  # embedded as it is
            zorder=self._above(),
        )

    def save(self, path: str | Path) -> None:
        """Write PDF or SVG, as the suffix of the path says.

        Raises:
            CaptionerError: The file cannot be written.
        """
        save_bytes(self.to_bytes(Path(path).suffix[1:]), path)

    def to_bytes(self, kind: str) -> bytes:
        """Return the page as PDF or SVG; the same page, the same bytes."""
        # imshow moves the limits.
        self._axes.set(xlim=(0, self.width), ylim=(self.height, 0))
        with warnings.catch_warnings():
            # Of letters that no font has: `font` says so, once.
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            return figure_bytes(self._figure, kind, title=self.title, facecolor="white")

    def _above(self) -> int:
        """Return the order of the next thing drawn, above all before it."""
        self._drawn += 1
        return self._drawn


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


def paste_photo(page: Page, photo: Image.Image, box: tuple[int, int, int, int]) -> None:
    """Paste a photo into a box, with a hairline around it: a white one has no edge otherwise."""
    left, top, right, bottom = box
    pen(page).rectangle((left - 1, top - 1, right, bottom), fill=RULE)
    page.paste(photo, box)


def finer(drawn: tuple[int, int], image: tuple[int, int], *, vector: bool) -> tuple[int, int]:
    """Return the resolution of a picture drawn at a size; on a vector page up to twice of it."""
    factor = min(max(image[0] / drawn[0], 1.0), 2.0) if vector else 1.0
    return round(drawn[0] * factor), round(drawn[1] * factor)
