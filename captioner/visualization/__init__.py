"""Attention maps drawn over their image: overlays, sheets, pages, animations, files."""

from __future__ import annotations

from captioner.types import Caption
from captioner.visualization import notebook
from captioner.visualization.files import (
    PICTURE_ENDINGS,
    caption_arrays,
    caption_from_arrays,
    output_names,
    picture_name,
    save_png,
    word_names,
)
from captioner.visualization.matrix import alignment_matrix, matrix_bytes
from captioner.visualization.notebook import picture_bytes, save_caption
from captioner.visualization.overlay import overlay
from captioner.visualization.page import (
    ReportedImage,
    caption_page,
    report_page,
    viewer_script,
)
from captioner.visualization.sheet import (
    attention_sheet,
    caption_gif,
    comparison_sheet,
    vector_sheet,
    word_images,
)
from captioner.visualization.style import OverlayStyle

__all__ = [
    "PICTURE_ENDINGS",
    "Caption",
    "OverlayStyle",
    "ReportedImage",
    "alignment_matrix",
    "attention_sheet",
    "caption_arrays",
    "caption_from_arrays",
    "caption_gif",
    "caption_page",
    "comparison_sheet",
    "matrix_bytes",
    "output_names",
    "overlay",
    "picture_bytes",
    "picture_name",
    "report_page",
    "save_caption",
    "save_png",
    "vector_sheet",
    "viewer_script",
    "word_images",
    "word_names",
]

Caption.drawing = notebook  # captions draw themselves by it; their type stands below
