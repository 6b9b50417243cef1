"""Captioned images and splits of them, as every reader of a data set returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from captioner.data.caption_checks import Markers, has_words, stands_for_nothing
from captioner.data.tars import ImagePath
from captioner.errors import listed


@dataclass(frozen=True)
class CaptionedImage:
    """An image file with its captions.

    Args:
        path: The file, which may be missing, or its place in a tar file.
        captions: Texts with every run of white space made one space.
        image_id: Its id in COCO results, distinct within a source.
        source: Index of the source that it is from, where a run reads several.
    """

    path: ImagePath
    captions: tuple[str, ...]
    image_id: int | str
    source: int = 0


@dataclass(frozen=True)
class Split:
    """The images of a split, each list in the order of its file.

    Args:
        images: Images on disk that have captions.
        missing: Files that are not on disk.
        uncaptioned: Images on disk without captions, as all of COCO's test split are.
        wordless: Captions that were left out, because there is no letter or digit in them, or
            because they stand for none (nan, null), each with its image.
        problems: Sentences about what the data set's files hold and cannot be used.
        markers: Markers that nearly all captions begin or end with.
    """

    images: list[CaptionedImage]
    missing: list[ImagePath]
    uncaptioned: list[CaptionedImage] = field(default_factory=list)
    wordless: list[tuple[ImagePath, str]] = field(default_factory=list)
    problems: Sequence[str] = field(default=(), compare=False)
    markers: Markers | None = field(default=None, compare=False)

    def left_out(self, name: str) -> list[str]:
        """Say what of the split `name` is of no use, one sentence a kind."""
        sentences = [*self.problems]
        if self.missing:
            count = len(self.missing) + len(self.images) + len(self.uncaptioned)
            sentences.append(
                f"{name}: {len(self.missing)} of {count} photos are missing: {listed(self.missing)}"
            )
        if self.uncaptioned:
            paths = [image.path for image in self.uncaptioned]
            sentences.append(
                f"{name}: {len(paths)} photos have no caption, so nothing is learned from them, "
                f"and they are not scored: {listed(paths)}"
            )
        if self.wordless:
            path, text = self.wordless[0]
            sentences.append(
                f"{name}: {len(self.wordless)} captions are left out, because they have no words; "
                f"the first is {text!r} of {path}"
            )
        return sentences


def with_words(
    images: Iterable[CaptionedImage],
) -> tuple[list[CaptionedImage], list[tuple[ImagePath, str]]]:
    """Return the images without the captions that have no words, and those captions.

    Captions without words, as references, would only lower the scores.
    """
    kept: list[CaptionedImage] = []
    left_out: list[tuple[ImagePath, str]] = []
    for image in images:
        usable = tuple(t for t in image.captions if has_words(t) and not stands_for_nothing(t))
        left_out += [(image.path, text) for text in image.captions if text not in usable]
        kept.append(replace(image, captions=usable))
    return kept, left_out
