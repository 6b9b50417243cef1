"""Finding image files on this machine: the photos in a folder, and those that a data set names."""

from __future__ import annotations

import contextlib
import itertools
import os
import posixpath
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from captioner.data.images import HEIF_SUFFIXES, IMAGE_SUFFIXES, register_heif
from captioner.errors import CaptionerError
from captioner.files import JOURNAL, read_journal
from captioner.log import printable
from captioner.storage import is_url

SUFFIXES = IMAGE_SUFFIXES | HEIF_SUFFIXES
_FOLDER = "folder"  # counted next to the suffixes of files
_OURS = (".xmp", ".html", ".npz", ".svg", ".pdf", ".jsonl")  # files of captioner, not reported
PICTURE_ENDINGS = (".attention.png", ".attention.gif", ".comparison.png", ".matrix.png")
MAX_DEPTH = 4  # folders below the root, as in flickr30k_images/flickr30k_images/
_COCO_NAME = re.compile(r"(?:COCO_[a-z]+\d{4}_)?(\d{1,12})", re.IGNORECASE)


def files_of_others(folder: Path, names: Iterable[str]) -> list[str]:
    """Return a folder's file names in order, without hidden ones and those that captioner wrote."""
    try:
        records = read_journal(folder / JOURNAL)
    except CaptionerError:
        records = {}
    ours = {name for record in records.values() for name in record["pictures"]}
    if records:
        ours.add(JOURNAL)
    drawn = {record["name"] for record in records.values()}

    def is_ours(name: str) -> bool:
        word = re.fullmatch(r"(.+)\.\d\d+-.+\.png", name)  # of whatever caption it had
        is_word = word is not None and word[1] in drawn
        return name.startswith(".") or name in ours or name.endswith(PICTURE_ENDINGS) or is_word

    return sorted(itertools.filterfalse(is_ours, names))


def list_files(root: Path) -> tuple[list[Path], list[Path]]:
    """Return the images below a folder, and its other files, those in the root first.

    What captioner wrote there is left out.
    """
    found: list[Path] = []
    for folder, folders, names in os.walk(root, followlinks=True):
        place = Path(folder)
        deep = len(place.parts) - len(root.parts) >= MAX_DEPTH
        folders[:] = [] if deep else sorted(f for f in folders if not f.startswith("."))
        found += [place / name for name in files_of_others(place, names)]
    images = [path for path in found if path.suffix.lower() in SUFFIXES]
    others = [path for path in found if path.suffix.lower() not in SUFFIXES]
    return images, sorted(others, key=lambda path: (len(path.parts), path))


def photos_in(
    folder: Path,
    skipped: Counter[str],
    failed: Callable[[object], None],
    *,
    recursive: bool = False,
    leave_out: Path | None = None,
) -> Iterator[Path]:
    """Yield the photos in a folder, by name, without hidden ones and pictures drawn earlier.

    What is left out is counted in `skipped`, by suffix, and as _FOLDER the folders. Links to
    folders are followed, but no folder is gone into twice. `leave_out` is a folder, too.
    """

    def unlisted(error: OSError) -> None:
        failed(f"{error.filename}: cannot be listed ({error.strerror})")

    left_out = None if leave_out is None else os.path.abspath(leave_out)
    suffixes = SUFFIXES if register_heif() else IMAGE_SUFFIXES
    seen = set[str]()
    for place, folders, names in os.walk(folder, onerror=unlisted, followlinks=True):
        if (real := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(real)
        for name in files_of_others(Path(place), names):
            suffix = Path(name).suffix.lower()
            if suffix in suffixes:
                yield Path(place, name)
            elif suffix not in _OURS:
                skipped[printable(suffix) or "no suffix"] += 1
        shown = (name for name in sorted(folders) if not name.startswith("."))
        folders[:] = [f for f in shown if os.path.abspath(Path(place, f)) != left_out]
        if not recursive:
            skipped[_FOLDER] += len(folders)
            return


def skipped_sentence(skipped: Counter[str]) -> str:
    """Return how many files and folders were skipped and what to do about it."""
    parts = []
    if kinds := sorted(set(skipped) - {_FOLDER}):
        parts.append(f"skipped files: {skipped.total() - skipped[_FOLDER]} ({', '.join(kinds)})")
    if HEIF_SUFFIXES & set(skipped):
        parts.append("to read HEIC, install pillow-heif or convert the photos")
    if count := skipped[_FOLDER]:
        parts.append(f"skipped folders: {count} (add --recursive to go into them)")
    return "; ".join(parts)


def find_images(
    names: Sequence[str], folders: Sequence[Path], images: Sequence[Path]
) -> dict[str, Path | None]:
    """Return the file of each name that a data set gives, None where there is none.

    Where no file lies there, the images below the root are compared with the name: without its
    folders, in other case, with another suffix or none, and a COCO image by its number alone. No
    file is found twice by comparison.

    Args:
        folders: Where names begin, the usual place first.
        images: The images below the root.
    """
    listed: dict[str, frozenset[str]] = {}  # each folder once: stat is slow on network disks

    def exists(path: Path) -> bool:
        folder, name = os.path.split(path)
        if folder not in listed:
            listed[folder] = frozenset()
            with contextlib.suppress(OSError, ValueError):  # no such folder, or no name for one
                listed[folder] = frozenset(os.listdir(folder or "."))
        return name in listed[folder]

    files = {name: next((f / name for f in folders if exists(f / name)), None) for name in names}
    taken = set(files.values())
    index: dict[str | int, list[Path]] = {}  # by lower-case name, by its stem, by COCO's number
    for path in images:
        if path not in taken:
            keys: list[str | int] = [_plain(path.name), _plain(path.stem)]
            if (match := _COCO_NAME.fullmatch(path.stem)) and len(match[1]) == 12:
                keys.append(int(match[1]))
            for key in keys:
                index.setdefault(key, []).append(path)
    right = {_plain(posixpath.dirname(name)) for name, path in files.items() if path}
    lacking = [name for name, path in files.items() if path is None]
    similar = {name: _similar(name, index, right) for name in lacking}
    count = Counter(similar.values())
    return files | {name: path for name, path in similar.items() if count[path] == 1}


def _plain(name: str) -> str:
    """Return a name in lower case, its accents as most systems store them, not as a Mac does."""
    return unicodedata.normalize("NFC", name).lower()


def _similar(
    name: str, index: Mapping[str | int, list[Path]], right: Collection[str]
) -> Path | None:
    """Return the image that is likeliest meant; None where several could be.

    In the `right` folders others lie where their names lead, so this one is in there or missing.
    """
    *folders, base = _plain(plain_name(name)).split("/")

    def rank(path: Path) -> tuple[int, int]:
        """Most folders in common with the name come first, then the least deep."""
        pairs = zip(reversed(path.parent.parts), reversed(folders), strict=False)
        common = itertools.takewhile(lambda pair: _plain(pair[0]) == pair[1], pairs)
        return -len(list(common)), len(path.parts)

    stem = posixpath.splitext(base)[0]
    number = _COCO_NAME.fullmatch(stem)
    for key in (base, stem, int(number[1]) if number else ""):
        candidates = index.get(key, [])
        if folders and "/".join(folders) in right:
            candidates = [path for path in candidates if rank(path)[0] < 0]
        if candidates:
            first, *others = sorted(candidates, key=rank)
            return None if others and rank(others[0]) == rank(first) else first
    return None


def plain_name(name: str) -> str:
    r"""Return a name with slashes, without drive and address.

    >>> plain_name("C:\\photos\\a.jpg"), plain_name("https://example.org/a%20b.jpg?size=2")
    ('photos/a.jpg', 'a b.jpg')
    """
    if is_url(name):
        return unquote(urlsplit(name).path).lstrip("/")
    return re.sub(r"^[A-Za-z]:", "", name.replace("\\", "/")).lstrip("/")
