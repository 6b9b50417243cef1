"""Errors whose message is one sentence for the user: the problem, its place and the remedy.

Commands print the message on stderr and turn it into an exit code; they catch no other errors. Any
function may raise one: `Raises` sections are for errors that a caller does something about.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Literal


class CaptionerError(Exception):
    """Base of every error that a user can cause and mend."""


class ConfigError(CaptionerError):
    """A setting that cannot be used; the message names its key and what is accepted."""


class ImageError(CaptionerError):
    """A photo that cannot be read; only `Captioner` begins the message with the photo's path."""


class DataError(CaptionerError):
    """A data set that cannot be read."""


class WeightsError(CaptionerError):
    """Encoder weights that cannot be loaded; the message names the file and where to put it."""


class CheckpointError(CaptionerError):
    """A model or run folder that is missing, incomplete or damaged."""


def error_summary(error: object, *, part: Literal["all", "line", "sentence"] = "all") -> str:
    """Return a library's error message on one line, cut after 300 characters.

    Args:
        error: The exception, or its message. One without a message is named by its class.
        part: `all` of the message; its first `line`, where stack frames or advice to programmers
            follow; or the first `sentence` of that line, without a place in the source code of
            torch or gloo in front of it.

    >>> error_summary("[/gloo/pair.cc:545] Connection reset. Check the logs.", part="sentence")
    'Connection reset'
    """
    text = str(error).strip()
    if part != "all":
        text = text.partition("\n")[0]
    if part == "sentence":
        text = re.sub(r"^\[\S+:\d+\] ", "", text).partition(". ")[0].rstrip(".")
    text = " ".join(text.split())[:300]
    return text or (type(error).__name__ if isinstance(error, BaseException) else "")


@contextlib.contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Context for imports of packages that only an extra of captioner installs.

    If one is missing, a CaptionerError says that `what` needs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("captioner", "torch"):
            raise
        raise CaptionerError(
            f"{what} needs {error.name}, which is not installed: pip install 'captioner[{extra}]'"
        ) from None


def listed(things: Iterable[object], most: int = 10) -> str:
    """Return things separated by commas, and how many more there are.

    >>> listed(["a.jpg", "b.jpg", "c.jpg"], 2)
    'a.jpg, b.jpg and 1 more'
    """
    texts = list(map(str, things))
    text = ", ".join(texts[:most])
    return text if len(texts) <= most else f"{text} and {len(texts) - most} more"
