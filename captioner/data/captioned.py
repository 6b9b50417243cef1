"""A photo with its captions, and what all readers of data sets ask of the disk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from captioner.errors import DataError


@dataclass(frozen=True)
class CaptionedImage:
    """A photo, its captions with white space made single spaces, and its id in COCO results."""

    path: Path
    captions: tuple[str, ...]
    image_id: int | str


class Disk:
    """Knows which files exist after listing each folder once.

    One listing of a folder takes the place of a hundred thousand stats, slow on network disks.
    """

    def __init__(self) -> None:
        self._names: dict[str, frozenset[str]] = {}

    def __contains__(self, path: Path) -> bool:
        folder, name = os.path.split(path)
        if folder not in self._names:
            try:
                self._names[folder] = frozenset(os.listdir(folder or "."))
            except (FileNotFoundError, NotADirectoryError):
                self._names[folder] = frozenset()
            except OSError as error:
                raise DataError(
                    f"the folder {folder} cannot be listed ({error.strerror}); check its rights"
                ) from error
        return name in self._names[folder]


def splits_there(names: Iterable[str]) -> str:
    return f"the splits there are: {', '.join(sorted(map(str, names))) or 'none'}"
