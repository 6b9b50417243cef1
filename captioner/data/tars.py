"""WebDataset shards: tar files whose members with one key are an image and its captions.

Images are read by their place in the tar file, in any order, so that the order of training, its
seeds and its resumption are those of single files. `captioner.data.formats.webdataset` knows the
places.
"""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from captioner.errors import DataError


@dataclass(frozen=True, slots=True)
class TarMember:
    """An image in a tar file; used in place of the path of an image.

    Attributes:
        name: Name of the image, as in the data set that the shards were written from.
        offset, size: Where its bytes begin and how many there are.
        version: Differs when the tar file has changed.
    """

    tar: str
    member: str
    name: str
    offset: int
    size: int
    version: str

    def __str__(self) -> str:
        return f"{self.tar}::{self.member}"

    def read_bytes(self) -> bytes:
        """Return the image file's bytes.

        Raises:
            DataError: They cannot be read. Unlike a damaged image, this one is not left out: if the
                network fails, every image would be.
        """
        (content,) = read_members([self])
        return content


ImagePath: TypeAlias = Path | TarMember


def file_facts(path: ImagePath) -> tuple[int, int | str]:
    """Return the size of an image file in bytes, and a value that differs when it has changed.

    Raises:
        OSError: There is no such file.
    """
    if isinstance(path, TarMember):
        return path.size, path.version
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def read_members(members: Sequence[TarMember]) -> list[bytes]:
    """Return the bytes of images in tar files; those behind URLs are read concurrently.

    Raises:
        DataError: One cannot be read.
    """
    from captioner.storage import fetch_ranges, is_url

    remote = [member for member in members if is_url(member.tar)]
    fetched = fetch_ranges([(m.tar, m.offset, m.offset + m.size) for m in remote])
    contents = iter(fetched)
    found = []
    for member in members:
        content: bytes | Exception
        if is_url(member.tar):
            content = next(contents)
        else:
            try:
                with open(member.tar, "rb") as file:
                    file.seek(member.offset)
                    content = file.read(member.size)
            except OSError as error:
                content = error
        if isinstance(content, Exception) or len(content) != member.size:
            reason = content if isinstance(content, Exception) else "the tar file ends before it"
            raise DataError(
                f"{member}: cannot be read ({reason}); see that the tar file is there and whole"
            )
        found.append(content)
    return found


def sample_key(name: str) -> tuple[str, str]:
    """Return key and extension of a tar member: `a/1.seg.png` is `seg.png` of `a/1`.

    Both are empty for a member that WebDataset skips.
    """
    folder, base = posixpath.split(name)
    key, _, extension = base.partition(".")
    return (posixpath.join(folder, key), extension.lower()) if key and extension else ("", "")


def is_image(member: tarfile.TarInfo) -> bool:
    """Return whether a tar member is an image of a sample."""
    from captioner.data.codecs import HEIF_SUFFIXES
    from captioner.data.transforms import IMAGE_SUFFIXES

    suffix, suffixes = posixpath.splitext(member.name)[1].lower(), IMAGE_SUFFIXES | HEIF_SUFFIXES
    return member.isfile() and bool(sample_key(member.name)[0]) and suffix in suffixes
