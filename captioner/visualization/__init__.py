"""Attention maps drawn over their image: overlays, sheets, pages, animations, files."""

from captioner.visualization.caption import Caption, caption_from_arrays
from captioner.visualization.overlay import attention_heat, word_overlay
from captioner.visualization.sheet import attention_sheet, comparison_sheet, vector_sheet
from captioner.visualization.style import Layers, OverlayStyle
from captioner.visualization.word_pictures import caption_gif, word_images
