"""The pictures behind the methods of `Caption`: save, show, figure, and those of notebooks.

All raise CaptionerError where the caption has no image, or one that cannot be read.
"""

from __future__ import annotations

import html
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from captioner.data.transforms import open_image, upright_rgb
from captioner.errors import CaptionerError, ImageError
from captioner.files import save, save_bytes
from captioner.visualization.files import caption_arrays, png
from captioner.visualization.page import caption_page
from captioner.visualization.sheet import attention_sheet, caption_gif, vector_sheet
from captioner.visualization.style import OverlayStyle

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from captioner.types import Caption

SUFFIXES = (".png", ".pdf", ".svg", ".gif", ".html", ".npz")


def save_caption(
    caption: Caption, path: str | Path, style: OverlayStyle | str | None = None
) -> None:
    """Write a caption with its attention maps to a file, as its suffix says: one of SUFFIXES."""
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise CaptionerError(
            f"{path}: cannot be saved; use a name that ends in {', '.join(SUFFIXES)}"
        )
    if kind == ".npz":
        arrays: dict[str, Any] = caption_arrays(caption)
        save(path, lambda file: np.savez_compressed(file, **arrays))
        return
    save_bytes(picture_bytes(caption, kind[1:], style, name=path.stem), path)


def picture_bytes(
    caption: Caption,
    kind: str,
    style: OverlayStyle | str | None = None,
    *,
    name: str = "photo",
    model: str = "caption",
    original_size: tuple[int, int] | None = None,
) -> bytes:
    """Return a picture of a caption with its attention maps as the bytes of a file.

    Args:
        kind: png, pdf, svg (a sheet of all words), gif (word after word) or html (the viewer).
        name, model: Names of the photo and of the model, in a page.
        original_size: Width and height of the photo, where the caption's image is a reduced one.
    """
    image = _image(caption)
    if kind == "gif":
        return caption_gif(image, caption, style)
    if kind == "html":
        page = caption_page(
            image, [(model, caption)], name=name, style=style, original_size=original_size
        )
        return page.encode(errors="replace")
    if kind in ("pdf", "svg"):
        return vector_sheet(image, [("", caption)], style).to_bytes(kind)
    return png(attention_sheet(image, caption, style, original_size=original_size))


def show_caption(caption: Caption, style: OverlayStyle | str | None = None) -> None:
    """Show the attention sheet: in the notebook, or in the system's image viewer."""
    sheet = attention_sheet(_image(caption), caption, style)
    display = sys.modules.get("IPython.display")  # loaded wherever it can display anything
    if display is not None and sys.modules["IPython"].get_ipython() is not None:
        display.display(sheet)
    else:
        sheet.show()


def caption_figure(caption: Caption, style: OverlayStyle | str | None = None) -> Figure:
    """Return the attention sheet as a matplotlib figure, which needs no display."""
    return vector_sheet(_image(caption), [("", caption)], style).figure


def caption_html(caption: Caption) -> str:
    """Return the page of a caption in a frame of its own, for notebooks."""
    image = _image(caption)
    page = caption_page(image, [("caption", caption)], name="photo")
    height = 620 if image.width >= image.height else 760
    return (
        f'<iframe srcdoc="{html.escape(page)}" title="{html.escape(caption.text)}" '
        f'sandbox="allow-scripts" style="border: 0; height: {height}px; width: 100%"></iframe>'
    )


def _image(caption: Caption) -> Image.Image:
    """Return the image of a caption, upright in RGB; an ImageError if it cannot be read."""
    if caption.image is None:
        raise CaptionerError(
            "the caption has no image to draw on: caption a photo or an image, or set it by "
            "dataclasses.replace(caption, image=...)"
        )
    if isinstance(caption.image, Image.Image):
        return upright_rgb(caption.image)  # as it was captioned
    try:
        return open_image(caption.image)
    except ImageError as error:
        if isinstance(caption.image, bytes):
            raise
        raise ImageError(f"{caption.image}: {error}") from None
