"""Captioned images and their splits, which every reader of a data set returns."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from captioner.errors import listed

_OTHER_NAMES = {"training": "train", "testing": "test"} | dict.fromkeys(
    ("valid", "validation", "dev"), "val"
)
SPLIT_NAMES = frozenset(("train", "val", "test", *_OTHER_NAMES))


@dataclass(frozen=True, slots=True)
class TarMember:
    """An image in a tar file."""

    tar: Path
    member: str
    offset: int  # where its bytes begin
    size: int  # how many bytes there are
    changed: int  # when the tar file was changed, in nanoseconds

    def __str__(self) -> str:
        return f"{self.tar}::{self.member}"

    @property
    def name(self) -> str:
        return posixpath.basename(self.member)

    def read_bytes(self) -> bytes:
        """Return its bytes."""
        with self.tar.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


ImagePath: TypeAlias = Path | TarMember


@dataclass(frozen=True)
class CaptionedImage:
    """An image file with its captions."""

    path: ImagePath  # the file, which may be missing, or its place in a tar file
    captions: tuple[str, ...]  # with every run of white space made one space
    image_id: int | str  # in COCO results; distinct within a source
    source: int = 0  # index of the source that it is from, where a run reads several


@dataclass(frozen=True)
class Split:
    """The images of a split, each list in the order of its file."""

    images: list[CaptionedImage]  # on disk and with captions
    missing: list[ImagePath]  # files that are not on disk
    # On disk and without captions, as all of COCO's test split are.
    uncaptioned: list[CaptionedImage] = field(default_factory=list)
    # Texts that are no captions, each with its image.
    wordless: list[tuple[ImagePath, str]] = field(default_factory=list)
    problems: Sequence[str] = field(default=(), compare=False)  # sentences on what cannot be used
    markers: str = field(default="", compare=False)  # what nearly all captions begin or end with

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


def split_name(name: str) -> str:
    """Return the name of a split as captioner uses it: val for Validation or dev."""
    name = name.strip().lower()
    return _OTHER_NAMES.get(name, name)


def split_of_folder(name: str) -> str:
    """Return the first folder in an image's name that is called like a split, or ""."""
    return next((p for p in name.split("/")[:-1] if p.lower() in SPLIT_NAMES), "")
