"""Finding the image files that a data set names, where they lie on this machine."""

from __future__ import annotations

import itertools
import os
import posixpath
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote, urlsplit

from captioner.data.images import HEIF_SUFFIXES, IMAGE_SUFFIXES
from captioner.storage import is_url

SUFFIXES = IMAGE_SUFFIXES | HEIF_SUFFIXES
MAX_DEPTH = 4  # folders below the root, as in flickr30k_images/flickr30k_images/
_COCO_NAME = re.compile(r"(?:COCO_[a-z]+\d{4}_)?(\d{1,12})", re.IGNORECASE)


@dataclass
class FolderTree:
    """The files below a folder, without hidden ones, listed once."""

    root: Path

    @cached_property
    def _files(self) -> list[Path]:
        found: list[Path] = []
        for folder, folders, names in os.walk(self.root, followlinks=True):
            place = Path(folder)
            deep = len(place.parts) - len(self.root.parts) >= MAX_DEPTH
            folders[:] = [] if deep else sorted(f for f in folders if not f.startswith("."))
            found += [place / name for name in sorted(names) if not name.startswith(".")]
        return found

    @cached_property
    def images(self) -> list[Path]:
        return [path for path in self._files if path.suffix.lower() in SUFFIXES]

    @cached_property
    def others(self) -> list[Path]:
        """The files that are not images, those in the root first."""
        found = [path for path in self._files if path.suffix.lower() not in SUFFIXES]
        return sorted(found, key=lambda path: (len(path.parts), path))


class ImageFinder:
    """Finds images by the names that a data set gives them.

    Where no file lies there, the images below the root are compared with the name: without its
    folders, in other case, with another suffix or none, and a COCO image by its number alone.

    Args:
        folders: Where names begin, the usual place first.
        tree: Files below the root.

    Attributes:
        files: The file of each name, None where there is none; no file twice by comparison.
        elsewhere: Number of images by folder that were found by comparison.
    """

    def __init__(self, names: Sequence[str], folders: Sequence[Path], tree: FolderTree) -> None:
        self.folders = folders
        self.tree = tree
        self._listed: dict[str, frozenset[str]] = {}  # names of files, by folder
        self.files: dict[str, Path | None] = {}
        for name in names:
            self.files[name] = next((f / name for f in folders if self._exists(f / name)), None)
        taken = set(self.files.values())
        missing = [name for name, path in self.files.items() if path is None]
        similar = {name: self._similar(name, taken) for name in missing}
        count = Counter(similar.values())
        found = {name: path for name, path in similar.items() if path and count[path] == 1}
        self.files |= found
        places = (os.path.relpath(path.parent, tree.root) for path in found.values())
        self.elsewhere = Counter("its folder" if p == "." else f"{p}/" for p in places)

    def _exists(self, path: Path) -> bool:
        """Return whether a file exists; each folder is listed once, as stat is slow on networks."""
        folder, name = os.path.split(path)
        if folder not in self._listed:
            try:
                self._listed[folder] = frozenset(os.listdir(folder or "."))
            except (OSError, ValueError):  # no such folder, or a zero byte in the name
                self._listed[folder] = frozenset()
        return name in self._listed[folder]

    def _similar(self, name: str, taken: set[Path | None]) -> Path | None:
        """Return the image below the root that is likeliest meant; None where several could be."""
        *folders, base = plain_name(name).lower().split("/")

        def rank(path: Path) -> tuple[int, int]:
            """Most folders in common with the name come first, then the least deep."""
            pairs = zip(reversed(path.parent.parts), reversed(folders), strict=False)
            common = itertools.takewhile(lambda pair: pair[0].lower() == pair[1], pairs)
            return -len(list(common)), len(path.parts)

        stem = posixpath.splitext(base)[0]
        number = _COCO_NAME.fullmatch(stem)
        for key in (base, stem, int(number[1]) if number else None):
            candidates = [path for path in self._index.get(key, ()) if path not in taken]
            if candidates:
                first = min(candidates, key=rank)
                return first if sum(rank(p) == rank(first) for p in candidates) == 1 else None
        return None

    @cached_property
    def _index(self) -> dict[str | int | None, list[Path]]:
        """Images below the root by lower-case name, by its stem, and by COCO's number."""
        index: dict[str | int | None, list[Path]] = {}
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
