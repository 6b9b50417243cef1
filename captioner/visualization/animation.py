"""Animated GIFs: a caption word by word, and the attention of a run epoch by epoch."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, ImageColor, ImageDraw

from captioner.errors import CaptionerError
from captioner.files import save_bytes
from captioner.visualization.comparison import comparison_sheet
from captioner.visualization.heat import colour_scale
from captioner.visualization.labels import BAR_COLOURS
from captioner.visualization.look import Look
from captioner.visualization.overlay import ColourMap, colour_table, resized
from captioner.visualization.typography import INK, MUTED, font, one_line
from captioner.visualization.words import word_images

if TYPE_CHECKING:
    from captioner.types import Caption

LONGEST_SIDE_PX = 640  # of the photo in an animation
WIDEST_GROWTH_PX = 1400
_GROWTH_ACROSS = 6  # panels in a line, as large as that leaves them
WORD_SECONDS, STILL_SECONDS, EPOCH_SECONDS = 0.9, 1.6, 1.2
_PALE = "#a9b1bc"


def gif(
    frames: Sequence[Image.Image], seconds: Sequence[float], *, colour_map: ColourMap = "cividis"
) -> bytes:
    """Frames of one size as a GIF that repeats for ever; seconds: how long each stays.

    Every frame is dithered with 256 colours: the colour map's, so that legends keep theirs, those
    of text and bars, and for the rest what suits the frame.

    Raises:
        ValueError: no frames, or frames of several sizes.
    """
    if not frames or len({frame.size for frame in frames}) > 1:
        raise ValueError(f"a GIF needs frames of one size, not {[f.size for f in frames]}")
    indexed = [_indexed(frame, colour_map) for frame in frames]
    file = io.BytesIO()
    indexed[0].save(
        file,
        format="GIF",
        save_all=True,
        append_images=indexed[1:],
        duration=[round(1000 * time) for time in seconds],
        loop=0,
        optimize=False,
    )
    return file.getvalue()


def save_gif(
    frames: Sequence[Image.Image],
    seconds: Sequence[float],
    path: str | Path,
    *,
    colour_map: ColourMap = "cividis",
) -> None:
    """Write what `gif` gives.

    Raises:
        CaptionerError: the file cannot be written.
        ValueError: no frames, or frames of several sizes.
    """
    save_bytes(gif(frames, seconds, colour_map=colour_map), path)


def caption_gif(photo: Image.Image, caption: Caption, look: Look | None = None) -> bytes:
    """A GIF of a caption: the photo, then one frame a word.

    Raises:
        ImageError: a photo of another size than the caption's.
    """
    look = look or Look()
    frames = list(caption_frames(photo, caption, look))
    seconds = [STILL_SECONDS] + [WORD_SECONDS] * (len(frames) - 1)
    if len(frames) > 1:
        seconds[-1] = STILL_SECONDS
    return gif(frames, seconds, colour_map=look.colour_map)


def save_caption_gif(
    photo: Image.Image, caption: Caption, path: str | Path, look: Look | None = None
) -> None:
    """Write what `caption_gif` gives.

    Raises:
        ImageError: a photo of another size than the caption's.
        CaptionerError: the file cannot be written.
    """
    save_bytes(caption_gif(photo, caption, look), path)


def caption_frames(photo: Image.Image, caption: Caption, look: Look) -> Iterator[Image.Image]:
    """The photo under its caption, then each word's overlay, the caption written up to there."""
    pictures = list(word_images(photo, caption, **vars(look), max_side_px=LONGEST_SIDE_PX))
    scale = min(1.0, LONGEST_SIDE_PX / max(photo.size))
    size = max(1, round(photo.width * scale)), max(1, round(photo.height * scale))
    if pictures:  # which enlarge small photos
        factor = max(1.0, pictures[0].width / size[0]) if max(size) < 320 else 1.0
        size = round(size[0] * factor), round(size[1] * factor)
    plain = resized(photo, caption.geometry, size)
    still = Image.new("RGB", pictures[0].size if pictures else plain.size, "white")
    still.paste(plain, ((still.width - plain.width) // 2, 0))
    for index, picture in enumerate([still, *pictures]):
        yield _under_sentence(picture, caption.words, index - 1)


def _under_sentence(picture: Image.Image, words: Sequence[str], current: int) -> Image.Image:
    """The picture below the caption, in which the current word stands out; -1: all alike."""
    text = max(15, picture.width // 26)
    face, strong = font(text), font(text, bold=True)
    margin, line_height, space = text, round(1.4 * text), face.getlength(" ")
    places: list[tuple[float, int]] = []
    x, line = float(margin), 0
    for word in words:
        wide = strong.getlength(one_line(word))  # so that nothing moves from frame to frame
        if x > margin and x + wide > picture.width - margin:
            x, line = float(margin), line + 1
        places.append((x, line))
        x += wide + space
    top = line_height * (line + 1) + margin
    frame = Image.new("RGB", (picture.width, picture.height + top), "white")
    frame.paste(picture, (0, top))
    draw = ImageDraw.Draw(frame)
    for index, (word, (x, row)) in enumerate(zip(words, places, strict=True)):
        chosen = index == current
        fill = INK if chosen or current < 0 else _PALE
        baseline = margin // 2 + text + row * line_height
        drawn = strong if chosen else face
        draw.text((x, baseline), one_line(word), fill=fill, font=drawn, anchor="ls")
    return frame


def save_growth_gif(
    photo: Image.Image,
    captions: Sequence[tuple[str, Caption]],
    path: str | Path,
    look: Look | None = None,
) -> None:
    """A GIF of what a model wrote and where it looked, one frame a name (such as `epoch 3`).

    All frames share one colour scale.

    Raises:
        ImageError: a photo of another size than a caption's.
        CaptionerError: there are no captions, or the file cannot be written.
    """
    if not captions:
        raise CaptionerError(f"{path}: there are no captions to draw")
    look = look or Look()
    vmax = max(colour_scale(caption, smooth=look.smooth) for _, caption in captions)
    sheets = [
        comparison_sheet(photo, [named], **vars(look), vmax=vmax, across=_GROWTH_ACROSS)
        for named in captions
    ]
    width = min(WIDEST_GROWTH_PX, sheets[0].width)
    height = max(sheet.height for sheet in sheets)
    frames = []
    for sheet in sheets:
        frame = Image.new("RGB", (sheet.width, height), "white")
        frame.paste(sheet, (0, 0))
        size = width, round(height * width / sheet.width)
        frames.append(frame.resize(size, Image.Resampling.LANCZOS))
    seconds = [EPOCH_SECONDS] * (len(frames) - 1) + [2 * EPOCH_SECONDS]
    save_gif(frames, seconds, path, colour_map=look.colour_map)


def _indexed(frame: Image.Image, colour_map: ColourMap) -> Image.Image:
    kept = colour_table(colour_map)[::4].tobytes()
    for colour in ("white", INK, MUTED, *BAR_COLOURS):
        kept += bytes(ImageColor.getrgb(colour))
    suiting = 256 - len(kept) // 3
    chosen = frame.quantize(suiting, method=Image.Quantize.MEDIANCUT).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette(bytes(chosen[: 3 * suiting]) + kept)
    return frame.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG)
