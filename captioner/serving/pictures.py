"""Files to download: where the model looked, as a picture, an animation or a page."""

from __future__ import annotations

import io

from PIL import Image

from captioner.types import Caption
from captioner.visualization import attention_sheet, caption_gif, caption_page

PHOTO_NAME = "your photo"  # its file's name is nobody's business here


def draw(form: str, photo: Image.Image, caption: Caption, model: str) -> tuple[bytes, str]:
    """A file's bytes and its media type; form: png, gif or html."""
    if form == "html":
        page = caption_page(photo, [(model, caption)], name=PHOTO_NAME)
        return page.encode(), "text/html"
    if form == "gif":
        return caption_gif(photo, caption), "image/gif"
    file = io.BytesIO()
    attention_sheet(photo, caption).save(file, format="PNG", compress_level=3)
    return file.getvalue(), "image/png"
