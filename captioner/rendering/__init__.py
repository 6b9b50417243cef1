"""Where the model looked, painted on the photo: overlays, sheets, pages, animations, files."""

from __future__ import annotations

from captioner.rendering.animation import save_caption_gif, save_gif, save_growth_gif
from captioner.rendering.arrays import caption_arrays, caption_from_arrays, jpeg, shrunk
from captioner.rendering.comparison import comparison_sheet, vector_comparison
from captioner.rendering.files import (
    comparison_name,
    is_picture_of,
    matrix_name,
    output_names,
    save_npz,
    save_png,
    sheet_name,
    word_names,
)
from captioner.rendering.heat import attention_heat, colour_scale
from captioner.rendering.look import Look
from captioner.rendering.matrix import alignment_matrix, vector_matrix
from captioner.rendering.overlay import (
    COLOUR_MAPS,
    OPACITY,
    STYLES,
    ColourMap,
    Style,
    outline_cell,
    overlay,
)
from captioner.rendering.page import Entry, caption_page, gallery_page
from captioner.rendering.report import ReportedPhoto, report_page
from captioner.rendering.sheet import attention_sheet, vector_sheet
from captioner.rendering.words import word_images

__all__ = [
    "COLOUR_MAPS",
    "OPACITY",
    "STYLES",
    "ColourMap",
    "Entry",
    "Look",
    "ReportedPhoto",
    "Style",
    "alignment_matrix",
    "attention_heat",
    "attention_sheet",
    "caption_arrays",
    "caption_from_arrays",
    "caption_page",
    "colour_scale",
    "comparison_name",
    "comparison_sheet",
    "gallery_page",
    "is_picture_of",
    "jpeg",
    "matrix_name",
    "outline_cell",
    "output_names",
    "overlay",
    "report_page",
    "save_caption_gif",
    "save_gif",
    "save_growth_gif",
    "save_npz",
    "save_png",
    "sheet_name",
    "shrunk",
    "vector_comparison",
    "vector_matrix",
    "vector_sheet",
    "word_images",
    "word_names",
]
