"""Where the model looked, painted on the photo: overlays, sheets, one picture a word, files."""

from __future__ import annotations

from captioner.rendering.comparison import comparison_sheet
from captioner.rendering.files import (
    comparison_name,
    is_picture_of,
    output_names,
    save_png,
    sheet_name,
    word_names,
)
from captioner.rendering.heat import attention_heat, colour_scale
from captioner.rendering.overlay import COLOUR_MAPS, OPACITY, ColourMap, outline_cell, overlay
from captioner.rendering.sheet import attention_sheet
from captioner.rendering.words import word_images

__all__ = [
    "COLOUR_MAPS",
    "OPACITY",
    "ColourMap",
    "attention_heat",
    "attention_sheet",
    "colour_scale",
    "comparison_name",
    "comparison_sheet",
    "is_picture_of",
    "outline_cell",
    "output_names",
    "overlay",
    "save_png",
    "sheet_name",
    "word_images",
    "word_names",
]
