"""Attention maps drawn over their image: overlays, sheets, pages, animations, files."""

from captioner.visualization.caption import Caption, caption_from_arrays
from captioner.visualization.sheet import (
    attention_sheet,
    caption_gif,
    comparison_sheet,
    vector_sheet,
    word_images,
)
from captioner.visualization.style import OverlayStyle
