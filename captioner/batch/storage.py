"""Files on this machine or behind a URL that fsspec understands (s3://, gs://, memory://, ...)."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from captioner.errors import CaptionerError
from captioner.files import replacing

MAX_FILE_BYTES = 2**28  # of a photo behind a URL


def is_url(name: str) -> bool:
    """Return whether a name is a URL rather than a path."""
    return bool(re.match(r"[a-z][a-z0-9+.-]+://", name))


def absolute(name: str) -> str:
    """Return a name by which other processes find the same: URLs as they are, paths absolute."""
    return name if is_url(name) else os.path.abspath(name)


def file_system(name: str) -> tuple[Any, str]:
    """Return the fsspec file system of a path or URL, and the path in it.

    Raises:
        CaptionerError: There is no such file system, or the package that it needs is missing.
    """
    try:
        system, path = fsspec.core.url_to_fs(name)
    except (ImportError, ValueError) as error:
        raise CaptionerError(f"{name}: {error}") from None
    return system, path


class Folder:
    """A folder to write to, whose files appear whole.

    On this machine a file is written next to its place, synchronised and renamed. Object stores
    show an object once it is complete. What other file systems tear is found by its checksum.

    Args:
        name: Path or URL; made by the first file.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.system, self.root = file_system(name)
        self.is_local = isinstance(self.system, LocalFileSystem)

    def path(self, name: str) -> str:
        """Return the path of a file in the folder, for `self.system`."""
        return posixpath.join(self.root, name)

    def read(self, name: str) -> bytes | None:
        """Return a file's content, None where there is no such file."""
        try:
            content: bytes = self.system.cat_file(self.path(name))
        except FileNotFoundError:
            return None
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file.

        Raises:
            CaptionerError: It cannot be written.
        """
        path = self.path(name)
        try:
            if self.is_local:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                with replacing(Path(path), durable=True) as file:
                    file.write(content)
            else:
                self.system.pipe_file(path, content)
        except OSError as error:
            raise CaptionerError(
                f"{self.name}/{name} cannot be written ({error.strerror or error}); free space, "
                "check permissions, and run the same command again: what is done stays done"
            ) from None

    def names(self, folder: str) -> set[str]:
        """Return the names of the files in a folder of this one, none where it is missing."""
        self.system.invalidate_cache()
        try:
            paths = self.system.ls(self.path(folder), detail=False)
        except FileNotFoundError:
            return set()
        return {posixpath.basename(path) for path in paths}

    def remove(self, name: str) -> None:
        """Remove a file."""
        self.system.rm_file(self.path(name))


def fetch(urls: Iterable[str]) -> dict[str, bytes | Exception]:
    """Read files behind URLs, concurrently where the file system can.

    Returns:
        The content of each, or why it cannot be read.
    """
    by_system: dict[str, list[str]] = {}
    for url in urls:
        by_system.setdefault(url.partition("://")[0], []).append(url)
    found: dict[str, bytes | Exception] = {}
    for group in by_system.values():
        system, _ = file_system(group[0])
        # Not `cat`, which takes [ and * in a name for patterns. One byte more than is accepted:
        # nobody reads a terabyte because a list names it.
        paths = [system._strip_protocol(url) for url in group]
        ends = [MAX_FILE_BYTES + 1] * len(group)
        contents = system.cat_ranges(paths, [0] * len(group), ends, on_error="return")
        found.update(zip(group, contents, strict=True))
    return found
