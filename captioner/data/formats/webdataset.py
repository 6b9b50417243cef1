"""WebDataset shards, as `captioner shards` writes them, or others with captions as JSON or text."""

from __future__ import annotations

import glob
import posixpath
import re
from collections.abc import Sequence

from captioner.data.captioned import CaptionedImage, DataFiles
from captioner.data.tars import read_shards
from captioner.errors import DataError

_NUMBERED = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.tar")


def read(data: DataFiles, splits: Sequence[str]) -> list[CaptionedImage]:
    """Read the tar files of the splits in `root`, a folder or URL.

    `file` is the pattern of their names, with *, ? and {00..99}; `{split}` in it is the name of the
    split. It is `{split}-[0-9]*.tar` by default. The captions of an image are in the JSON with its
    key (`captions`, or img2dataset's `caption`), or else in its text. Ids are those of the data set
    that the shards were written from, else shard and key.
    """
    from captioner.storage import expand, is_url

    data.refuse("coco_splits")
    images: dict[int | str, CaptionedImage] = {}
    for split in splits:
        pattern = str(data.file or "{split}-[0-9]*.tar").replace("{split}", split)
        root = str(data.root)
        names = expand(posixpath.join(root if is_url(root) else glob.escape(root), pattern))
        _check_complete(names)
        for sample in read_shards(names):
            if sample.image_id in images:
                raise DataError(
                    f"{sample.image}: its id {sample.image_id} is also that of "
                    f"{images[sample.image_id].path}; take one split at a time, or write the "
                    "shards again with ids that differ"
                )
            images[sample.image_id] = CaptionedImage(sample.image, sample.captions, sample.image_id)
    return list(images.values())


def _check_complete(names: Sequence[str]) -> None:
    """Refuse a set of numbered shards that is not complete, or mixed with another.

    Raises:
        DataError: Names the first that is missing, or both sets.
    """
    sets: dict[str, dict[str, set[int]]] = {}
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            prefix, number, count = match.groups()
            sets.setdefault(prefix, {}).setdefault(count, set()).add(int(number))
    for prefix, writings in sets.items():
        if len(writings) > 1:
            raise DataError(
                f"{prefix}-*.tar are shards of {' and of '.join(sorted(writings))}, which were "
                "written one over the other; remove those of one"
            )
        ((count, found),) = writings.items()
        missing = sorted(set(range(int(count))) - found)
        if missing:
            raise DataError(
                f"{prefix}-{missing[0]:05d}-of-{count}.tar is missing ({len(missing)} of "
                f"{int(count)} shards are); copy them or write them again"
            )
