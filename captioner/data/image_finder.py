"""Finding the image files that a data set names, where they lie on this machine."""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote, urlsplit

from captioner.data.codecs import HEIF_SUFFIXES
from captioner.data.transforms import IMAGE_SUFFIXES
from captioner.storage import is_url

SUFFIXES = IMAGE_SUFFIXES | HEIF_SUFFIXES
MAX_DEPTH = 4  # folders below the root, as in flickr30k_images/flickr30k_images/
_COCO_NAME = re.compile(r"(?:COCO_[a-z]+\d{4}_)?(\d{1,12})", re.IGNORECASE)


class FolderTree:
    """The files below a folder, without hidden ones, listed once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def files(self) -> list[Path]:
        return list(self._walk())

    @cached_property
    def images(self) -> list[Path]:
        return [path for path in self.files if path.suffix.lower() in SUFFIXES]

    @cached_property
    def others(self) -> list[Path]:
        """The files that are not images, those in the root first."""
        found = [path for path in self.files if path.suffix.lower() not in SUFFIXES]
        return sorted(found, key=lambda path: (len(path.parts), path))

    def _walk(self) -> Iterator[Path]:
        top = len(self.root.parts)
        for folder, folders, names in os.walk(self.root, followlinks=True):
            place = Path(folder)
            deep = len(place.parts) - top >= MAX_DEPTH
            folders[:] = [] if deep else sorted(f for f in folders if not f.startswith("."))
            yield from (place / name for name in sorted(names) if not name.startswith("."))


class ImageFinder:
    """Finds images by the names that a data set gives them.

    A name is a path from one of `folders` in most data sets. Where no file lies there, the images
    below `root` are compared with the name: without its folders, in other case, with another
    suffix or none, and a COCO image by its number, whatever the year in its name.

    Args:
        folders: Where names begin, the usual place first.
        tree: Files below the root.
    """

    def __init__(self, folders: Sequence[Path], tree: FolderTree) -> None:
        self.folders = folders
        self.tree = tree
        self._listed: dict[str, frozenset[str]] = {}  # names by folder
        self.elsewhere: Counter[str] = Counter()  # images by folder that were found by comparison

    def find(self, names: Sequence[str]) -> list[Path | None]:
        """Return the file of each name, None where there is none; no file twice by comparison."""
        found = [self._exact(name) for name in names]
        if None not in found:
            return found
        taken = set(found)
        similar = [
            self._similar(name, taken) if path is None else None
            for name, path in zip(names, found, strict=True)
        ]
        count = Counter(similar)
        for index, path in enumerate(similar):
            if path is not None and count[path] == 1:
                found[index] = path
                self.elsewhere[_folder_name(path.parent, self.tree.root)] += 1
        return found

    def expected(self, name: str) -> Path:
        """Return where an image would lie that is not on disk."""
        return self.folders[0] / name

    def _exact(self, name: str) -> Path | None:
        paths = (folder / name for folder in self.folders)
        return next(filter(self._exists, paths), None)

    def _exists(self, path: Path) -> bool:
        """Return whether a file exists; each folder is listed once.

        A listing replaces a hundred thousand calls of stat, slow on network disks.
        """
        folder, name = os.path.split(path)
        if folder not in self._listed:
            try:
                self._listed[folder] = frozenset(os.listdir(folder or "."))
            except (OSError, ValueError):  # no such folder, or a zero byte in the name
                self._listed[folder] = frozenset()
        return name in self._listed[folder]

    def _similar(self, name: str, taken: set[Path | None]) -> Path | None:
        """Return the image below the root that is likeliest meant; None where several could be."""
        parts = plain_name(name).lower().split("/")
        base, stem = parts[-1], posixpath.splitext(parts[-1])[0]
        keys: list[str | int] = [base, stem]
        if match := _COCO_NAME.fullmatch(stem):
            keys.append(int(match[1]))
        for key in keys:
            candidates = [path for path in self._index.get(key, ()) if path not in taken]
            if candidates:
                ranked = sorted(candidates, key=lambda path: _rank(path, parts[:-1]))
                first, *others = (_rank(path, parts[:-1]) for path in ranked[:2])
                return None if first in others else ranked[0]
        return None

    @cached_property
    def _index(self) -> dict[str | int, list[Path]]:
        """Images below the root by lower-case name, by its stem, and by COCO's number."""
        index: dict[str | int, list[Path]] = {}
        for path in self.tree.images:
            keys: list[str | int] = [path.name.lower(), path.stem.lower()]
            if (match := _COCO_NAME.fullmatch(path.stem)) and len(match[1]) == 12:
                keys.append(int(match[1]))
            for key in keys:
                index.setdefault(key, []).append(path)
        return index


def plain_name(name: str) -> str:
    r"""Return a name with slashes, without drive and address.

    >>> plain_name("C:\\photos\\a.jpg"), plain_name("https://example.org/a%20b.jpg?size=2")
    ('photos/a.jpg', 'a b.jpg')
    """
    if is_url(name):
        return unquote(urlsplit(name).path).lstrip("/")
    return re.sub(r"^[A-Za-z]:", "", name.replace("\\", "/")).lstrip("/")


def _rank(path: Path, folders: Sequence[str]) -> tuple[int, int]:
    """Rank a candidate: most folders in common with the name first, then the least deep."""
    common = 0
    for mine, other in zip(reversed(path.parent.parts), reversed(folders), strict=False):
        if mine.lower() != other:
            break
        common += 1
    return -common, len(path.parts)


def _folder_name(folder: Path, root: Path) -> str:
    relative = os.path.relpath(folder, root)
    return "its folder" if relative == "." else f"{relative}/"
