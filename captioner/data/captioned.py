"""Captioned images and splits of them, as every reader of a data set returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from captioner.data.checks import Markers
from captioner.data.images import ImagePath
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
        wordless: Texts that are no captions, each with its image.
        problems: Sentences about what the data set's files hold and cannot be used.
    """

    images: list[CaptionedImage]
    missing: list[ImagePath]
    uncaptioned: list[CaptionedImage] = field(default_factory=list)
    wordless: list[tuple[ImagePath, str]] = field(default_factory=list)
    problems: Sequence[str] = field(default=(), compare=False)
    markers: Markers | None = field(default=None, compare=False)

    def left_out(self, name: str) -> list[str]:
        """Return a sentence for each kind of thing in the split `name` that is of no use."""
        sentences = [*self.problems]
        missing, uncaptioned = self.missing, [image.path for image in self.uncaptioned]
        count = len(missing) + len(uncaptioned) + len(self.images)
        if missing:
            sentences.append(
                f"{name}: {len(missing)} of {count} photos are missing: {listed(missing)}"
            )
        if uncaptioned:
            sentences.append(
                f"{name}: {len(uncaptioned)} photos have no caption, so nothing is learned from "
                f"them, and they are not scored: {listed(uncaptioned)}"
            )
        if self.wordless:
            path, text = self.wordless[0]
            sentences.append(
                f"{name}: {len(self.wordless)} captions are left out, because they have no words; "
                f"the first is {text!r} of {path}"
            )
        return sentences
