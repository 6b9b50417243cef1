"""Captioned images and splits of them, as every reader of a data set returns."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from captioner.data.tars import ImagePath, TarMember
from captioner.data.text_files import has_words
from captioner.errors import DataError

NAMED = 10  # missing files that are named one by one


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
        wordless: Captions that were left out, because there is no letter or digit in them, each
            with its image.
    """

    images: list[CaptionedImage]
    missing: list[ImagePath]
    uncaptioned: list[CaptionedImage] = field(default_factory=list)
    wordless: list[tuple[ImagePath, str]] = field(default_factory=list)

    def left_out(self, name: str) -> list[str]:
        """Say what of the split `name` is of no use; of missing files, the first by their names."""
        sentences = []
        if self.missing:
            sentences = [f"{path}: no such file, left out" for path in self.missing[:NAMED]]
            count = len(self.missing) + len(self.images) + len(self.uncaptioned)
            sentences.append(f"{name}: {len(self.missing)} of {count} photos are missing")
        if self.uncaptioned:
            sentences.append(
                f"{name}: {len(self.uncaptioned)} photos have no captions, so nothing is learned "
                "from them, and they are not scored"
            )
        if wordless := self.wordless_sentence():
            sentences.append(f"{name}: {wordless}")
        return sentences

    def wordless_sentence(self) -> str | None:
        """Say which captions were left out for want of words; None without any."""
        if not self.wordless:
            return None
        path, text = self.wordless[0]
        return (
            f"{len(self.wordless)} captions are left out, because they have no words; the first is "
            f"{text!r} of {path}"
        )


def with_words(
    images: Iterable[CaptionedImage],
) -> tuple[list[CaptionedImage], list[tuple[ImagePath, str]]]:
    """Return the images without the captions that have no words, and those captions.

    Captions without words, as references, would only lower the scores.
    """
    images = list(images)
    wordless = [
        (image.path, text) for image in images for text in image.captions if not has_words(text)
    ]
    if wordless:
        images = [
            replace(image, captions=tuple(filter(has_words, image.captions))) for image in images
        ]
    return images, wordless


class ExistingFiles:
    """Set of the files that exist, which lists each folder once.

    One listing of a folder replaces a hundred thousand calls of stat, slow on network disks.
    """

    def __init__(self) -> None:
        self._names: dict[str, frozenset[str]] = {}

    def __contains__(self, path: ImagePath) -> bool:
        if isinstance(path, TarMember):  # the tar file's size was compared with its index
            return True
        folder, name = os.path.split(path)
        if folder not in self._names:
            try:
                self._names[folder] = frozenset(os.listdir(folder or "."))
            except (FileNotFoundError, NotADirectoryError, ValueError):  # a zero byte in the name
                self._names[folder] = frozenset()
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG:  # no folder can have this name
                    self._names[folder] = frozenset()
                    return False
                raise DataError(
                    f"the folder {folder} cannot be listed ({error.strerror}); check its rights"
                ) from error
        return name in self._names[folder]


@dataclass(frozen=True)
class DataFiles:
    """Where a data set lies.

    Args:
        format, root, file, coco_splits: As in `captioner.config.DataConfig`.
        existing: The files on disk, for formats that look for an image in several places.
    """

    format: str
    root: str | Path
    file: str | Path | None = None
    coco_splits: str | Path | None = None
    existing: ExistingFiles = field(default_factory=ExistingFiles)

    def refuse(self, *settings: str) -> None:
        """Refuse `file` or `coco_splits` where the format has no use for them.

        Raises:
            DataError: One of them is given.
        """
        if "file" in settings and self.file is not None:
            raise DataError(f"format {self.format} knows its captions file; leave out {self.file}")
        if "coco_splits" in settings and self.coco_splits is not None:
            raise DataError(
                f"the split lists in {self.coco_splits} are for format coco, not {self.format}"
            )


def available_splits(names: Iterable[str]) -> str:
    """Return the part of a message that lists the splits of a data set."""
    return f"the splits there are: {', '.join(sorted(map(str, names))) or 'none'}"


def check_splits(path: Path, splits: Iterable[str], available: Iterable[str]) -> None:
    """Refuse splits that a captions file does not have.

    Raises:
        DataError: Names the split and those there.
    """
    available = set(available)
    for split in splits:
        if split not in available:
            raise DataError(f"{path} has no split {split!r}; " + available_splits(available))
