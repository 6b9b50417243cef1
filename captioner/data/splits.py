"""Names of splits, and the photos that are held out where a data set has none."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Sequence

from captioner.data.image_finder import plain_name

VAL_SHARE = 0.1  # of the photos of a data set without splits
_OTHER_NAMES = {"training": "train", "testing": "test"} | dict.fromkeys(
    ("valid", "validation", "dev"), "val"
)
SPLIT_NAMES = frozenset(("train", "val", "test", *_OTHER_NAMES))


def split_name(name: str) -> str:
    """Return the name of a split as captioner uses it: val for Validation or dev."""
    name = name.strip().lower()
    return _OTHER_NAMES.get(name, name)


def split_of_folder(name: str) -> str:
    """Return the first folder in an image's name that is called like a split, or ""."""
    return next((p for p in name.split("/")[:-1] if p.lower() in SPLIT_NAMES), "")


def held_out_for_validation(names: Sequence[str], share: float) -> set[int]:
    """Return which images of a data set without splits are held out for validation.

    Each is drawn by a hash of its file name alone, so that a photo keeps its place when others are
    added. At least two are chosen, because CIDEr of a single one is always 0.
    """

    def draw(name: str) -> int:
        base = posixpath.basename(plain_name(name))
        return int.from_bytes(hashlib.sha256(base.encode(errors="replace")).digest()[:8], "big")

    draws = list(map(draw, names))
    count = max(2, sum(value < share * 2**64 for value in draws))
    return set(sorted(range(len(names)), key=lambda index: (draws[index], names[index]))[:count])
