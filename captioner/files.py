"""Writing files so that nobody ever sees half of one, and locking folders against other runs."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from captioner.errors import CaptionerError, ConfigError
from captioner.log import logger

TEMPORARY = ".*.tmp"  # pattern of the files that `replacing` writes; a killed process leaves one


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path`, with its permissions, once it is written completely.

    Args:
        durable: Wait until the content is on the disk before it gets the name, so that a power cut
            leaves the old file or the new one.
    """
    # A rename is atomic only within a file system; the name of `path` may be as long as it allows.
    temporary = path.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        with temporary.open("xb") as file:
            # Before there is content, which would else be readable to others for a moment.
            with suppress(OSError):  # there is no earlier file, or no permissions to keep
                temporary.chmod(stat.S_IMODE(path.stat().st_mode))
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)  # there only when something went wrong


def save_bytes(content: bytes, path: str | Path) -> None:
    """Write a file, and its folder where it is missing: all of it, or nothing."""
    with writing(Path(path)), replacing(Path(path)) as file:
        file.write(content)


def check_writable(path: str | Path) -> None:
    """Check, before the work, that `save_bytes` can write there; makes the folder, and no file."""
    path = Path(path)
    with writing(path), tempfile.TemporaryFile(dir=path.parent):
        path.is_file()  # raises for a name that is too long


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make the folder of a file; a CaptionerError says why the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError("it is a folder")
        yield
    except (FileExistsError, NotADirectoryError):
        raise CaptionerError(f"{path.parent} is a file, not a folder; choose another") from None
    except OSError as error:
        raise CaptionerError(
            f"{path} cannot be written ({error.strerror or error}); choose another folder, or "
            "free space and check its permissions"
        ) from None


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold a lock on a file against other processes; it ends with this one, however that ends.

    Args:
        wait: Wait for a process that holds the lock, and say so on stderr.

    Raises:
        BlockingIOError: Another process holds it, and `wait` is false.
        OSError: The file cannot be made.
    """
    from filelock import FileLock, Timeout

    path.open("ab").close()  # raises where no file can be made, whatever the lock does
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if not wait:
            raise BlockingIOError(f"{path} is locked") from None
        logger.warning(f"{path.parent}: waiting for another process that writes there")
        lock.acquire()
    except OSError as error:  # some network file systems
        logger.warning(
            f"{path.parent} cannot be locked ({error.strerror}); let no other process write there"
        )
    try:
        yield
    finally:
        lock.release()


@contextmanager
def locked_folder(folder: Path, *, name: str, remedy: str) -> Iterator[None]:
    """Make a folder where it is missing, and keep other runs away from it.

    Args:
        name, remedy: What a message calls the folder, and what to do instead.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder / ".lock", wait=False))
        except OSError as error:
            reason = error.strerror or "another run writes there"  # BlockingIOError has none
            raise ConfigError(f"{name}: cannot be written to ({reason}); {remedy}") from None
        yield
