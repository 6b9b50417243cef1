"""Photos given to a command: finding them in folders, and opening them."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from captioner.errors import ImageError
from captioner.log import printable

STANDARD_INPUT = "-"
PAGE_SUFFIXES = frozenset((".html", ".htm", ".xhtml", ".md", ".markdown"))
MAX_INPUT_BYTES = 2**28  # of a photo on standard input or at an address
DOWNLOAD_TIMEOUT_S = 60.0
_OURS = (".xmp", ".html", ".npz", ".svg", ".pdf", ".jsonl")  # files of captioner, not reported
_LISTS = (".txt", ".csv", ".tsv", ".jsonl", ".json", ".parquet")
_ARCHIVES = (".tar", ".zip", ".gz", ".tgz", ".7z", ".rar")


@dataclass
class Skipped:
    """Files and folders in the given folders that are not captioned."""

    files: Counter[str] = field(default_factory=Counter)  # by suffix
    folders: int = 0

    def sentence(self) -> str:
        """Return what was skipped and what to do about it, or ""."""
        from captioner.data.images import HEIF_SUFFIXES

        parts = []
        if count := self.files.total():
            heic = HEIF_SUFFIXES & set(self.files)
            remedy = "; to read HEIC, install pillow-heif or convert the photos" if heic else ""
            kinds = ", ".join(sorted(self.files))
            parts.append(f"{count} file{'s' * (count > 1)} skipped: {kinds}{remedy}")
        if count := self.folders:
            remedy = "add --recursive to go into them"
            parts.append(f"{count} folder{'s' * (count > 1)} skipped: {remedy}")
        return "; ".join(parts)


def photos_in(
    folder: Path,
    skipped: Skipped,
    failed: Callable[[object], None],
    *,
    recursive: bool = False,
    leave_out: Collection[str] = (),
) -> Iterator[Path]:
    """Yield the photos in a folder, by name, without hidden ones and pictures drawn earlier.

    Args:
        skipped: Counts the files and folders that are left out.
        failed: Called with a sentence for each folder that cannot be listed.
        recursive: Also go into the folders inside it; links to folders are not followed.
        leave_out: Absolute paths of folders not to go into, such as the one drawn into.
    """
    from captioner.cli.output_folder import pictures_in
    from captioner.data.images import HEIF_SUFFIXES, IMAGE_SUFFIXES, register_heif
    from captioner.visualization.files import PICTURE_ENDINGS

    def unlisted(error: OSError) -> None:
        failed(f"{error.filename}: cannot be listed ({error.strerror})")

    suffixes = IMAGE_SUFFIXES | (HEIF_SUFFIXES if register_heif() else frozenset())
    for place, folders, names in os.walk(folder, onerror=unlisted):
        drawn = pictures_in(Path(place))
        for name in sorted(names):
            suffix = Path(name).suffix.lower()
            if name.startswith(".") or name in drawn:
                continue
            if suffix not in suffixes:
                if suffix not in _OURS:
                    skipped.files[printable(suffix) or "no suffix"] += 1
            elif not name.endswith(PICTURE_ENDINGS):
                yield Path(place, name)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and os.path.abspath(Path(place, name)) not in leave_out
        )
        if not recursive:
            skipped.folders += len(folders)
            return


def open_photo(photo: Path | str) -> Image.Image:
    """Read the photo at a path or an address, or on standard input, which is `-`.

    Raises:
        ImageError: There is no photo that can be read.
    """
    from captioner.data.images import open_image

    if photo == STANDARD_INPUT:
        content = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        if not content:
            raise ImageError("standard input is empty; send a photo: captioner caption - < PHOTO")
        if len(content) > MAX_INPUT_BYTES:
            raise ImageError(f"standard input is larger than {MAX_INPUT_BYTES >> 20} MiB")
        return open_image(content)
    if isinstance(photo, str):
        from captioner.data.download import fetch_image

        # The user chose the address, so it may be one of the user's own network.
        content = fetch_image(photo, MAX_INPUT_BYTES, DOWNLOAD_TIMEOUT_S, allow_private=True)
        return open_image(content)
    return open_image(photo)


def is_page(name: str) -> bool:
    """Return whether an argument is a page of HTML or Markdown by its name."""
    return Path(name).suffix.lower() in PAGE_SUFFIXES and not os.path.isdir(name)


def refusal_of(name: str, *, allow_urls: bool, allow_pages: bool) -> str | None:
    """Return why an argument cannot be a photo by its name; None if it may be one."""
    if "://" in name and not os.path.exists(name):
        from captioner.data.download import is_url

        if not is_url(name):
            remedy = "captioner batch reads those of fsspec, such as s3://"
            return f"is an address that is not fetched; {remedy}"
        remedy = "(or: curl -L ADDRESS | captioner caption -)"
        refusal = f"is an address, from which nothing is fetched without --allow-urls {remedy}"
        return None if allow_urls else refusal
    if is_page(name):
        refusal = "is a page; to fill in the texts of its images add --write html"
        return None if allow_pages else refusal
    suffix = Path(name).suffix.lower()
    if suffix not in _LISTS + _ARCHIVES or not os.path.isfile(name):
        return None
    kind = "a list of photos" if suffix in _LISTS else "an archive"
    if suffix in (*_LISTS, ".tar"):
        return f"is {kind}, not a photo; captioner batch {name} --output DIR reads such files"
    return f"is {kind}, not a photo; unpack it and give its folder"
