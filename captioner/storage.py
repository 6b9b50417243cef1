"""Files on this machine or behind a URL that fsspec understands (s3://, gs://, memory://, ...)."""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from captioner.errors import CaptionerError, DataError, error_summary
from captioner.files import replacing

MAX_FILE_BYTES = 2**28  # of a photo behind a URL


def is_url(name: str) -> bool:
    """Return whether a name is a URL rather than a path."""
    return bool(re.match(r"[a-z][a-z0-9+.-]+://", name))


def absolute(name: str) -> str:
    """Return a name that is valid in all processes: URLs as they are, paths absolute."""
    return name if is_url(name) else os.path.abspath(name)


def file_system(name: str) -> tuple[Any, str]:
    """Return the fsspec file system of a path or URL, and the path in it."""
    import fsspec  # not among what captions on a CPU

    try:
        system, path = fsspec.core.url_to_fs(name)
    except (ImportError, ValueError) as error:
        raise CaptionerError(f"{name}: {error}") from None
    return system, path


@contextlib.contextmanager
def accessing(name: str, what: str = "read") -> Iterator[None]:
    """Context in which what a file system raises becomes a DataError, but for FileNotFoundError.

    That of a URL may raise anything, and a DataError then says that it cannot be `what`.
    """
    try:
        yield
    except (CaptionerError, FileNotFoundError, UnicodeDecodeError):
        raise
    except Exception as error:
        if not (is_url(name) or isinstance(error, OSError)):
            raise
        reason = getattr(error, "strerror", None)
        reason = reason or error_summary(error, part="line", max_length=200)
        raise DataError(
            f"{name}: cannot be {what} ({reason}); check the address, the space, the rights "
            "and, of a URL, the credentials and the network"
        ) from None


def expand(pattern: str) -> list[str]:
    """Return the paths or URLs of a pattern with {00..99}, * or ?, in order; at least one."""
    from braceexpand import braceexpand  # of the extra `batch`

    try:
        names = list(braceexpand(pattern)) if "{" in pattern else [pattern]
    except ValueError:
        raise DataError(f"{pattern}: a brace is not closed") from None
    found: list[str] = []
    for name in names:
        system, path = file_system(name)
        with accessing(name):
            if any(sign in name for sign in "*?["):
                paths = sorted(system.glob(path))
            else:
                paths = [path] if system.exists(path) else []
        if not paths:
            raise DataError(f"{name}: no such file")
        found += [system.unstrip_protocol(each) if is_url(name) else each for each in paths]
    return found


class Folder:
    """A folder to write to (a path or URL), made by its first file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.system, self.root = file_system(name)
        self.is_local = self.system.protocol == ("file", "local")

    def path(self, name: str) -> str:
        """Return the path of a file in the folder, for `self.system`."""
        return posixpath.join(self.root, name)

    def read(self, name: str) -> bytes | None:
        """Return a file's content, None where there is no such file; a DataError says why not."""
        with contextlib.suppress(FileNotFoundError), accessing(f"{self.name}/{name}"):
            return self.system.cat_file(self.path(name))
        return None

    def write(self, name: str, content: bytes) -> None:
        """Write a file; a DataError says why it cannot be written."""
        path = self.path(name)
        with accessing(f"{self.name}/{name}", "written"):
            if self.is_local:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                with replacing(Path(path), durable=True) as file:
                    file.write(content)
            else:
                self.system.pipe_file(path, content)

    def names(self, folder: str) -> set[str]:
        """Return the names of the files in a folder of this one, none where it is missing."""
        self.system.invalidate_cache()
        paths: list[str] = []
        with contextlib.suppress(FileNotFoundError), accessing(self.name):
            paths = self.system.ls(self.path(folder), detail=False)
        return {posixpath.basename(path) for path in paths}


def fetch(urls: Iterable[str]) -> dict[str, bytes | Exception]:
    """Read files behind URLs, concurrently where the file system can; an error in place of one.

    At most MAX_FILE_BYTES of each: nobody reads a terabyte because a list names it.
    """
    by_system: dict[str, list[str]] = {}
    for url in dict.fromkeys(urls):
        by_system.setdefault(url.partition("://")[0], []).append(url)
    found: dict[str, bytes | Exception] = {}
    for names in by_system.values():
        system, _ = file_system(names[0])
        # Not `cat`, which takes [ and * in a name for patterns.
        paths = [system._strip_protocol(url) for url in names]
        contents = system.cat_ranges(paths, 0, MAX_FILE_BYTES, on_error="return")
        found.update(zip(names, contents, strict=True))
    return found
