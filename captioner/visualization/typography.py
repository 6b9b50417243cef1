"""Typography: DejaVu Sans from matplotlib's own files, and text that fits its place."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from PIL import ImageFont

INK = "#16191d"
MUTED = "#667080"


@lru_cache(maxsize=64)
def font(size_px: int, *, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which has β, × and the letters of most alphabets."""
    import matplotlib  # here, because it takes longer to import than all of ours

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path(), "fonts", "ttf", name)), size_px)


def one_line(text: str) -> str:
    """The text without line breaks and other characters that cannot be drawn."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def shorten(text: str, face: ImageFont.FreeTypeFont, width_px: float) -> str:
    """The text, or as much of its start as fits in the width, and an ellipsis."""
    if face.getlength(text) <= width_px:
        return text
    fits, too_long = 0, len(text)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if face.getlength(text[:middle].rstrip() + "…") <= width_px:
            fits = middle
        else:
            too_long = middle
    return text[:fits].rstrip() + "…"


def fit(
    text: str, width_px: float, *, size_px: int, smallest_px: int, bold: bool = False
) -> tuple[str, ImageFont.FreeTypeFont]:
    """The text with the largest font in which it fits; shortened where the smallest is too wide."""
    for size in range(size_px, smallest_px, -1):
        if font(size, bold=bold).getlength(text) <= width_px:
            return text, font(size, bold=bold)
    face = font(smallest_px, bold=bold)
    return shorten(text, face, width_px), face


def wrap(text: str, face: ImageFont.FreeTypeFont, width_px: float, *, max_lines: int) -> list[str]:
    """The text in lines no wider than width_px; what does not fit max_lines ends in an ellipsis."""
    lines: list[str] = []
    line = ""
    words = text.split(" ")
    for position, word in enumerate(words):
        longer = f"{line} {word}" if line else word
        if face.getlength(longer) <= width_px:
            line = longer
        elif len(lines) == max_lines - 1:
            rest = " ".join(words[position:])
            return [*lines, shorten(f"{line} {rest}" if line else rest, face, width_px)]
        else:
            if line:
                lines.append(line)
            line = shorten(word, face, width_px)
    return [*lines, line]
