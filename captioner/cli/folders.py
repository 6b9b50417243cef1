"""The photos in the folders that `captioner caption` is given."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from captioner.data.image_finder import files_of_others
from captioner.data.images import HEIF_SUFFIXES, IMAGE_SUFFIXES, register_heif
from captioner.log import printable

_FOLDER = "folder"  # counted next to the suffixes of files
_OURS = (".xmp", ".html", ".npz", ".svg", ".pdf", ".jsonl")  # files of captioner, not reported


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
    suffixes = IMAGE_SUFFIXES | (HEIF_SUFFIXES if register_heif() else frozenset())
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
            if folders:
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
