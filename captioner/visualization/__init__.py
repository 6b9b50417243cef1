"""Where the model looked, painted on the photo: overlays, sheets, pages, animations, files."""

from __future__ import annotations

from captioner.visualization.animation import save_caption_gif, save_gif, save_growth_gif
from captioner.visualization.arrays import caption_arrays, caption_from_arrays, jpeg, shrunk
from captioner.visualization.comparison import comparison_sheet, vector_comparison
from captioner.visualization.files import (
    comparison_name,
    is_picture_of,
    matrix_name,
    output_names,
    save_npz,
    save_png,
    sheet_name,
    word_names,
)
from captioner.visualization.heat import attention_heat, colour_scale
from captioner.visualization.look import Look
from captioner.visualization.matrix import alignment_matrix, vector_matrix
from captioner.visualization.overlay import (
    COLOUR_MAPS,
    OPACITY,
    STYLES,
    ColourMap,
    Style,
    outline_cell,
    overlay,
)
from captioner.visualization.page import Entry, caption_page, gallery_page
from captioner.visualization.report import ReportedPhoto, report_page
from captioner.visualization.sheet import attention_sheet, vector_sheet
from captioner.visualization.words import word_images

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
