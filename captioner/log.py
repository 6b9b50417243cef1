"""The log of the package: Python's own, with a handler for people; and progress bars."""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

from tqdm import tqdm

# Control characters but line feed and tab, line separators, and marks that change the direction of
# text: a file name or a word could use them to rewrite what stands on the terminal.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Return text with its control characters as visible `\\u001b` escapes.

    The escapes are JSON's, so a line of JSON stays the same JSON.
    """
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def printable(text: object) -> str:
    """Return text on one line, with control characters and line breaks as visible escapes."""
    return visible(str(text)).replace("\n", r"\u000a").replace("\t", r"\u0009")


class _Lines(logging.Handler):
    """Prints each message as a line, above the progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        if sys.stderr is not None:
            tqdm.write(printable(record.getMessage()), file=sys.stderr)


logger = logging.getLogger("captioner")
logger.addHandler(_Lines())
logger.setLevel(logging.INFO)
logger.propagate = False  # or a program with a log of its own would show each line twice


def progress_bar(iterable: Any = None, *, disable: bool = False, **options: Any) -> tqdm[Any]:
    """Return tqdm's progress bar, which is shown on a terminal unless notes are left out."""
    hidden = disable or not logger.isEnabledFor(logging.INFO)
    return tqdm(iterable, disable=True if hidden else None, **options)
