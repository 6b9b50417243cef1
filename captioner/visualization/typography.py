"""Text of the pictures: a font that has its letters, and text fitted to the room there is."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from captioner.data.vocabulary import begins_unspaced

INK = "#16191d"
MUTED = "#667080"
WARNING = "#b3471e"
RULE = "#b8c0ca"  # hairlines


def font(size_px: int, *, bold: bool = False, text: str = "") -> ImageFont.FreeTypeFont:
    """Return DejaVu Sans, or for a text with letters that it lacks, a font of the system.

    DejaVu Sans, which comes with matplotlib, has no Chinese, Japanese or Korean. Where no font has
    a letter, stderr says so once.
    """
    file = None
    if not text.isascii() and (lacking := set(text) - letters(_dejavu(bold))):
        from captioner.visualization.system_fonts import font_with

        file = font_with("".join(sorted(lacking)))
    return _face(file or _dejavu(bold), size_px)


_face = lru_cache(maxsize=64)(ImageFont.truetype)


@lru_cache(maxsize=2)
def _dejavu(bold: bool) -> str:
    import matplotlib  # here, because it takes longer to import than all of ours

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return str(Path(matplotlib.get_data_path(), "fonts", "ttf", name))


@lru_cache(maxsize=256)
def letters(path: str) -> frozenset[str]:
    """Return the characters of a font file, of the first font in it where it has several."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(map(chr, FT2Font(path).get_charmap()))
    except (OSError, RuntimeError):  # no font that FreeType can read
        return frozenset()


def one_line(text: str) -> str:
    """Return the text without line breaks and other characters that cannot be drawn."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _shorten(text: str, face: ImageFont.FreeTypeFont, width_px: float) -> str:
    """Return the text, or as much of its start as fits in the width, and an ellipsis."""
    if face.getlength(text) <= width_px:
        return text
    cut = [text[:end].rstrip() + "…" for end in range(len(text))]
    return cut[max(0, bisect_right(cut, width_px, key=face.getlength) - 1)]


@lru_cache(maxsize=1024)
def fit(
    text: str, width_px: float, *, size_px: int, smallest_px: int, bold: bool = False
) -> tuple[str, ImageFont.FreeTypeFont]:
    """Return the text and the largest font in which it fits, shortened if none is."""
    for size in range(size_px, smallest_px - 1, -1):
        face = font(size, bold=bold, text=text)
        if face.getlength(text) <= width_px:
            break
    return _shorten(text, face, width_px), face


def wrap(text: str, face: ImageFont.FreeTypeFont, width_px: float, *, max_lines: int) -> list[str]:
    """Break the text into lines within width_px; what exceeds max_lines ends in an ellipsis."""
    lines: list[str] = []
    line = ""
    # A line may end before a space, and before any character of a script without spaces.
    marked = (f"\n{c}" if c == " " or begins_unspaced(c) else c for c in text)
    words = "".join(marked).split("\n")  # each with the space before it
    for position, word in enumerate(words):
        longer = line + word if line else word.lstrip()
        if face.getlength(longer) <= width_px:
            line = longer
        elif len(lines) == max_lines - 1:
            rest = "".join(words[position:])
            return [*lines, _shorten((line + rest).lstrip(), face, width_px)]
        else:
            if line:
                lines.append(line)
            line = _shorten(word.lstrip(), face, width_px)
    return [*lines, line]


@lru_cache(maxsize=512)
def text_mask(
    text: str, face: ImageFont.FreeTypeFont, anchor: str, right_px: float, down_px: float
) -> tuple[Image.Image, int, int]:
    """Return how text covers pixels, and its left and top from the whole pixel of its anchor."""
    left, top, right, bottom = map(round, face.getbbox(text, anchor=anchor))
    mask = Image.new("L", (right - left + 4, bottom - top + 4))
    place = (2 - left + right_px, 2 - top + down_px)
    ImageDraw.Draw(mask).text(place, text, fill=255, font=face, anchor=anchor)
    return mask, left - 2, top - 2
