"""Photos given to a command: finding them in folders, and opening them."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image

from captioner.errors import ImageError
from captioner.files import files_of_others
from captioner.log import printable

STANDARD_INPUT = "-"
FOLDER = "folder"  # counted next to the suffixes of files
MAX_BYTES = 2**28  # of a photo on standard input or at an address
DOWNLOAD_TIMEOUT_S = 60.0
LISTS = tuple(".txt .csv .tsv .jsonl .json .parquet .tar .tgz .zip .gz .7z .rar".split())
_PAGES = (".html", ".htm", ".xhtml", ".md", ".markdown")
_OURS = (".xmp", ".html", ".npz", ".svg", ".pdf", ".jsonl")  # files of captioner, not reported


def skipped_sentence(skipped: Counter[str]) -> str:
    """Return how many files and folders were skipped and what to do about it, or ""."""
    from captioner.data.images import HEIF_SUFFIXES

    parts = []
    if kinds := sorted(set(skipped) - {FOLDER}):
        parts.append(f"skipped files: {skipped.total() - skipped[FOLDER]} ({', '.join(kinds)})")
    if HEIF_SUFFIXES & set(skipped):
        parts.append("to read HEIC, install pillow-heif or convert the photos")
    if count := skipped[FOLDER]:
        parts.append(f"skipped folders: {count} (add --recursive to go into them)")
    return "; ".join(parts)


def photos_in(
    folder: Path,
    skipped: Counter[str],
    failed: Callable[[object], None],
    *,
    recursive: bool = False,
    leave_out: str | None = None,
) -> Iterator[Path]:
    """Yield the photos in a folder, by name, without hidden ones and pictures drawn earlier.

    What is left out is counted in `skipped`, by suffix, and as FOLDER the folders.
    """
    from captioner.data.images import HEIF_SUFFIXES, IMAGE_SUFFIXES, register_heif

    def unlisted(error: OSError) -> None:
        failed(f"{error.filename}: cannot be listed ({error.strerror})")

    suffixes = IMAGE_SUFFIXES | (HEIF_SUFFIXES if register_heif() else frozenset())
    for place, folders, names in os.walk(folder, onerror=unlisted):
        for name in files_of_others(Path(place), names):
            suffix = Path(name).suffix.lower()
            if suffix in suffixes:
                yield Path(place, name)
            elif suffix not in _OURS:
                skipped[printable(suffix) or "no suffix"] += 1
        shown = (name for name in sorted(folders) if not name.startswith("."))
        folders[:] = [f for f in shown if os.path.abspath(Path(place, f)) != leave_out]
        if not recursive:
            skipped[FOLDER] += len(folders)
            return


def open_photo(photo: Path | str) -> Image.Image:
    """Read the photo at a path or an address, or on standard input, which is `-`."""
    from captioner.data.images import open_image

    if photo == STANDARD_INPUT:
        content = sys.stdin.buffer.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ImageError(f"is larger than {MAX_BYTES >> 20} MiB")
        return open_image(content)
    if isinstance(photo, Path):
        return open_image(photo)
    from captioner.storage import fetch_image

    # The user chose the address, so it may be one of the user's own network.
    return open_image(fetch_image(photo, MAX_BYTES, DOWNLOAD_TIMEOUT_S, allow_private=True))


def is_address(name: str) -> bool:
    """Return whether an argument is an address by its name."""
    return "://" in name and not os.path.exists(name)


def is_page(name: str) -> bool:
    """Return whether an argument is a page of HTML or Markdown by its name."""
    return Path(name).suffix.lower() in _PAGES
