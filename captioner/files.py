"""The files that captioner writes: whole or not at all, under names of their own; the journal."""

from __future__ import annotations

import itertools
import json
import os
import re
import secrets
import stat
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from captioner.errors import CaptionerError, ConfigError
from captioner.log import logger

TEMPORARY = ".*.tmp"  # pattern of the files that `replacing` writes; a killed process leaves one
JOURNAL = "captions.jsonl"
PICTURE_ENDINGS = (".attention.png", ".attention.gif", ".comparison.png", ".matrix.png")


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
            raise IsADirectoryError
        yield
    except IsADirectoryError:
        raise CaptionerError(f"{path} is a folder; name a file in it") from None
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


def claim_name(owners: dict[str, str], path: str, *preferred: str) -> str:
    """Return the first name in a folder that no other file has, and enter it among the owners.

    After the preferred names come the file's own, that with its folder in front, and numbers.

    Args:
        owners: The path of the file that has a name, by the name in lower case.

    >>> owners = {"dog": "in/dog.png"}
    >>> [claim_name(owners, path, "dog") for path in ("in/dog.png", "in/dog.jpg", "out/dog.jpg")]
    ['dog', 'dog.jpg', 'out-dog.jpg']
    """
    file = Path(path)
    longer = f"{file.parent.name}-{file.name}"
    names = itertools.chain(
        preferred, [file.name, longer], (f"{number}-{longer}" for number in itertools.count(2))
    )
    return next(name for name in names if owners.setdefault(name.casefold(), path) == path)


def word_names(name: str, words: Sequence[str]) -> list[str]:
    """Return the file names of the pictures of words: NAME.01-word.png, ..., in reading order.

    Of a word, at most 32 letters, digits and hyphens are kept; what is left empty becomes `word`.

    >>> word_names("photo", ["a", "l'été", "../.."])
    ['photo.01-a.png', 'photo.02-l-été.png', 'photo.03-word.png']
    """
    names = []
    for number, word in enumerate(words, start=1):
        kept = "".join(c if c.isalnum() else " " for c in unicodedata.normalize("NFC", word))
        kept = "-".join(kept.split())[:32].rstrip("-") or "word"
        names.append(f"{name}.{number:02d}-{kept}.png")
    return names


def files_of_others(folder: Path, names: Iterable[str]) -> list[str]:
    """Return a folder's file names in order, without hidden ones and those that captioner wrote."""
    try:
        records = read_journal(folder / JOURNAL)
    except CaptionerError:
        records = {}
    ours = {name for record in records.values() for name in record["pictures"]}
    if records:
        ours.add(JOURNAL)
    drawn = {record["name"] for record in records.values()}

    def is_ours(name: str) -> bool:
        word = re.fullmatch(r"(.+)\.\d\d+-.+\.png", name)  # of whatever caption it had
        is_word = word is not None and word[1] in drawn
        return name.startswith(".") or name in ours or name.endswith(PICTURE_ENDINGS) or is_word

    return sorted(itertools.filterfalse(is_ours, names))


def read_journal(file: Path) -> dict[str, dict[str, Any]]:
    """Return the records of a journal by their photo, without a line that a kill cut short."""
    try:
        lines = file.read_bytes().splitlines() if file.is_file() else []
    except OSError as error:
        raise CaptionerError(f"{file} cannot be read ({error.strerror})") from None
    records: dict[str, dict[str, Any]] = {}
    for line in lines:
        try:
            record = json.loads(line)
            image, *_ = [record[key] for key in ("image", "name", "pictures")]
            records[image] = record
        except (ValueError, LookupError, TypeError):
            if b'{"image": '.startswith(line[:10]) and not line.endswith(b"}"):
                continue
            raise CaptionerError(
                f"{file} is no journal of captioner and stays as it is; choose another --output"
            ) from None
    return records
