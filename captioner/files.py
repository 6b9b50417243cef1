"""Writing a file so that nobody ever sees half of it, and keeping others away meanwhile."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from captioner.errors import CaptionerError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` once it is written; otherwise it vanishes.

    Raises:
        OSError: it cannot be written, or not be put there.
    """
    unfinished = _sibling(path)
    try:
        with unfinished.open("xb") as file:
            yield file
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)  # there only when something went wrong


def save(path: str | Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file: all of it, or nothing, even when the disk fills up or we are stopped.

    The folder is made when it is missing; a file of that name is replaced.

    Raises:
        CaptionerError: the file cannot be written; the message names it.
    """
    path = Path(path)
    _make_place(path)
    try:
        with replacing(path) as file:
            write(file)
    except OSError as error:
        raise _unwritable(path, error) from None


def save_bytes(content: bytes, path: str | Path) -> None:
    """Write a file with this content; as `save`."""
    save(path, lambda file: file.write(content))


def check_writable(path: str | Path) -> None:
    """Find out, before the work, whether `save` can write there; makes the folder, and no file.

    Raises:
        CaptionerError: it cannot.
    """
    path = Path(path)
    _make_place(path)
    unfinished = _sibling(path)
    try:
        unfinished.open("xb").close()
        unfinished.unlink()
    except OSError as error:
        raise _unwritable(path, error) from None


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold a lock on `path`, a file that is made where it is missing, against other processes.

    wait: for a process that holds it, which is told on stderr; else that is an error.
    It ends with this process, however that ends; processes that it forks do not share it.

    Raises:
        BlockingIOError: another process holds it, and we are not to wait.
        OSError: the file cannot be made.
    """
    with path.open("w") as file:
        if sys.platform == "win32":  # which has no such locks
            yield
            return
        import fcntl

        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, as the system likes
            if not wait:
                raise BlockingIOError(f"{path} is locked") from None
            print(f"{path.parent}: waiting for another run that writes there", file=sys.stderr)
            fcntl.lockf(file, fcntl.LOCK_EX)
        except OSError as error:  # some network file systems
            print(
                f"{path.parent} cannot be locked ({error.strerror}); let no other process write "
                "there",
                file=sys.stderr,
            )
        yield


def _sibling(path: Path) -> Path:
    # Beside it, because a rename is atomic only within one file system; its name is short,
    # because the name of `path` may already be as long as the file system allows.
    return path.with_name(f".{secrets.token_hex(8)}.tmp")


def _make_place(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        taken = stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        return
    except FileExistsError:
        raise CaptionerError(
            f"{path} cannot be written, because a file stands where its folder should be; choose "
            "another folder"
        ) from None
    except OSError as error:  # a name too long, too
        raise _unwritable(path, error) from None
    if taken:
        raise CaptionerError(f"{path} cannot be written, because it is a folder; name a file in it")


def _unwritable(path: Path, error: OSError) -> CaptionerError:
    return CaptionerError(
        f"{path} cannot be written ({error.strerror or error}); choose another folder, or "
        "free space and check its permissions"
    )
