"""Text of the pictures: DejaVu Sans from matplotlib's files, fitted to the room there is."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from PIL import ImageFont

INK = "#16191d"
MUTED = "#667080"
WARNING = "#b3471e"


@lru_cache(maxsize=64)
def font(size_px: int, *, bold: bool = False) -> ImageFont.FreeTypeFont:
    """Return DejaVu Sans, which has β, × and the letters of most alphabets."""
    import matplotlib  # here, because it takes longer to import than all of ours

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path(), "fonts", "ttf", name)), size_px)


def one_line(text: str) -> str:
    """Return the text without line breaks and other characters that cannot be drawn."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def shorten(text: str, face: ImageFont.FreeTypeFont, width_px: float) -> str:
    """Return the text, or as much of its start as fits in the width, and an ellipsis."""
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
    """Return the text and the largest font in which it fits, shortened if none is."""
    for size in range(size_px, smallest_px, -1):
        if font(size, bold=bold).getlength(text) <= width_px:
            return text, font(size, bold=bold)
    face = font(smallest_px, bold=bold)
    return shorten(text, face, width_px), face


def wrap(text: str, face: ImageFont.FreeTypeFont, width_px: float, *, max_lines: int) -> list[str]:
    """Break the text into lines within width_px; what exceeds max_lines ends in an ellipsis."""
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
