"""Writing files so that nobody ever sees half of one, and locking folders against other runs."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from captioner.errors import CaptionerError, ConfigError
from captioner.log import logger

_TEMPORARY_NAME = re.compile(r"\.[0-9a-f]{16}\.tmp")
_ABANDONED_AFTER_S = 3600.0  # without a change; nothing takes so long between two writes


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path` once it is written completely; if not, it is removed.

    It gets the permissions of the file that it replaces.

    Args:
        durable: Wait until the content is on the disk before it gets the name, so that a power cut
            leaves the old file or the new one.

    Raises:
        OSError: It cannot be written or renamed.
    """
    temporary = _temporary_sibling(path)
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


@contextmanager
def replacing_folder(folder: Path, *, keep_as: str | None = None) -> Iterator[Path]:
    """Make a folder that takes the place of `folder` once it is filled; if not, it is removed.

    Args:
        keep_as: Name that the earlier folder gets next to the new one; None removes it.

    Raises:
        OSError: It cannot be written or renamed; the earlier folder is then as it was.
    """
    folder = Path(os.path.abspath(folder))  # "." has no name
    temporary = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        _rename_into_place(temporary, folder, keep_as=keep_as)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)  # or it would keep a full disk full
        raise


def _rename_into_place(temporary: Path, folder: Path, *, keep_as: str | None) -> None:
    """Rename a folder to `folder`; the earlier one gets another name, or is removed.

    A folder to remove is renamed first, because a kill during its removal would leave half of it.
    """
    leaving = folder.with_name(f".{keep_as or folder.name}.old")
    moves = [(folder, leaving)]
    if keep_as:
        kept = folder.with_name(keep_as)
        moves = [(kept, leaving), (folder, kept)]
    moves.append((temporary, folder))
    done: list[tuple[Path, Path]] = []
    shutil.rmtree(leaving, ignore_errors=True)
    try:
        for old, new in moves:
            if old.exists():
                os.replace(old, new)
                done.append((old, new))
    except BaseException:
        for old, new in reversed(done):
            os.replace(new, old)
        raise
    fsync(folder.parent)
    shutil.rmtree(leaving, ignore_errors=True)


def fsync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    if sys.platform == "win32":  # cannot open folders, nor sync files opened for reading
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save(path: str | Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file: all of it, or nothing, even when the disk fills up or the process is stopped.

    Args:
        path: Its folder is made when it is missing; a file of that name is replaced.
        write: Writes the content to an open file.

    Raises:
        CaptionerError: The file cannot be written; the message names it.
    """
    path = Path(path)
    _make_folder_of(path)
    try:
        with replacing(path) as file:
            write(file)
    except OSError as error:
        raise _unwritable(path, error) from None


def save_bytes(content: bytes, path: str | Path) -> None:
    """Write a file with this content; as `save`."""
    save(path, lambda file: file.write(content))


def check_writable(path: str | Path) -> None:
    """Check, before the work, that `save` can write there; makes the folder, and no file.

    Temporary files that an earlier process left in the folder are removed.

    Raises:
        CaptionerError: It cannot be written.
    """
    path = Path(path)
    _make_folder_of(path)
    temporary = _temporary_sibling(path)
    try:
        temporary.open("xb").close()
        temporary.unlink()
    except OSError as error:
        raise _unwritable(path, error) from None
    remove_temporary_files(path.parent)


def remove_temporary_files(folder: Path, *, older_than_s: float = _ABANDONED_AFTER_S) -> None:
    """Remove the temporary files of `save` that a killed process left in a folder.

    Args:
        older_than_s: Only files that were not changed for this many seconds; 0 where a lock keeps
            other processes away.
    """
    try:
        names = [name for name in os.listdir(folder) if _TEMPORARY_NAME.fullmatch(name)]
    except OSError:
        return
    for name in names:
        path = folder / name
        with suppress(OSError):  # another process removed it, or only another user may
            if time.time() - path.stat().st_mtime >= older_than_s:
                path.unlink()


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold a lock on `path`, a file that is made where it is missing, against other processes.

    The lock ends with this process, however that ends; processes forked from it do not share it.

    Args:
        path: The lock file; it stays there.
        wait: Wait for a process that holds the lock, and say so on stderr; else that is an error.

    Raises:
        BlockingIOError: Another process holds it, and `wait` is false.
        OSError: The file cannot be made.
    """
    from filelock import FileLock, Timeout

    path.open("ab").close()  # raises where no file can be made, whatever the lock does
    lock = FileLock(path, thread_local=False)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if not wait:
                raise BlockingIOError(f"{path} is locked") from None
            logger.warning(f"{path.parent}: waiting for another process that writes there")
            lock.acquire()
    except BlockingIOError:
        raise
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
        name: What the folder is called in a message.
        remedy: The end of a message: what to do instead.

    Raises:
        ConfigError: Another run writes there, or nothing can be written there.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder / ".lock", wait=False))
        except BlockingIOError:
            raise ConfigError(
                f"{name}: another run writes there; wait for its end, or {remedy}"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"{name}: cannot be written to ({error.strerror}); {remedy}"
            ) from None
        yield


def _temporary_sibling(path: Path) -> Path:
    # In the same folder, because a rename is atomic only within a file system; its name is short,
    # because the name of `path` may already be as long as the file system allows.
    return path.with_name(f".{secrets.token_hex(8)}.tmp")


def _make_folder_of(path: Path) -> None:
    """Make the folder of a file; refuse a path that is a folder itself."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        return
    except FileExistsError:
        raise CaptionerError(
            f"{path} cannot be written, because a file stands where its folder should be; choose "
            "another folder"
        ) from None
    except OSError as error:  # a name too long, too
        raise _unwritable(path, error) from None
    if is_folder:
        raise CaptionerError(f"{path} cannot be written, because it is a folder; name a file in it")


def _unwritable(path: Path, error: OSError) -> CaptionerError:
    return CaptionerError(
        f"{path} cannot be written ({error.strerror or error}); choose another folder, or "
        "free space and check its permissions"
    )
