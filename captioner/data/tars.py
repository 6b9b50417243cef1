"""Images inside tar files, read by their place and so in any order, as single files are."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from captioner.errors import DataError


@dataclass(frozen=True, slots=True)
class TarMember:
    """An image in a tar file.

    Attributes:
        offset, size: Where its bytes begin and how many there are.
        changed: When the tar file was changed, in nanoseconds.
    """

    tar: Path
    member: str
    offset: int
    size: int
    changed: int

    def __str__(self) -> str:
        return f"{self.tar}::{self.member}"

    @property
    def name(self) -> str:
        return posixpath.basename(self.member)

    def read_bytes(self) -> bytes:
        """Return the image file's bytes.

        Raises:
            DataError: They cannot be read; if a disk fails, no image is taken for a damaged one.
        """
        try:
            with self.tar.open("rb") as file:
                file.seek(self.offset)
                content = file.read(self.size)
        except OSError as error:
            raise DataError(f"{self}: cannot be read ({error})") from None
        if len(content) != self.size:
            raise DataError(f"{self}: the tar file ends before it; copy it again")
        return content


ImagePath: TypeAlias = Path | TarMember
