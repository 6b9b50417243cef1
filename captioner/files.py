"""The files that captioner writes: whole or not at all, under names of their own; the journal."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from captioner.errors import CaptionerError

TEMPORARY = ".*.tmp"  # pattern of the files that `replacing` writes; a killed process leaves one
JOURNAL = "captions.jsonl"


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
    numbered = (f"{number}-{longer}" for number in itertools.count(2))
    names = itertools.chain(preferred, [file.name, longer], numbered)
    return next(name for name in names if owners.setdefault(name.casefold(), path) == path)


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
