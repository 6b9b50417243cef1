"""Writing a data set as WebDataset shards, which `captioner.data.tars` reads."""

from __future__ import annotations

import io
import json
import posixpath
import re
import tarfile
from collections.abc import Callable, Sequence
from typing import Any

from captioner.data.captioned import CaptionedImage
from captioner.data.tars import ImagePath, TarMember, index_bytes, index_name, read_bytes
from captioner.errors import DataError
from captioner.storage import Folder


def write_shards(
    images: Sequence[CaptionedImage],
    output: Folder,
    split: str,
    *,
    photos_per_shard: int,
    done: Callable[[int], object] = lambda count: None,
) -> list[str]:
    """Write images and their captions into tar files with indexes; the same input, the same bytes.

    A sample is NUMBER.jpg (as the image's own suffix is) with its bytes as they are, and
    NUMBER.json with `id`, `image` (its name) and `captions`. The tar files are called
    SPLIT-NUMBER-of-COUNT.tar, so that it shows when one is missing.

    Args:
        photos_per_shard: Images in a tar file, of which the last may have fewer.
        done: Called with the number of images after each tar file.

    Raises:
        DataError: An image cannot be read, or the output holds shards of this split.
        CaptionerError: The output cannot be written.
    """
    ours = re.compile(re.escape(split) + r"-\d{5}-of-\d{5}\.(tar|index\.jsonl)")
    existing = {name for name in output.names("") if ours.fullmatch(name)}
    count = -(-len(images) // photos_per_shard)
    names = [f"{split}-{number:05d}-of-{count:05d}.tar" for number in range(count)]
    if others := sorted(existing - {each for name in names for each in (name, index_name(name))}):
        raise DataError(
            f"{output.name} holds other shards of split {split} ({others[0]}); remove them, or "
            "choose another --output"
        )
    for number, name in enumerate(names):
        first = number * photos_per_shard
        members = images[first : first + photos_per_shard]
        content, lines = _shard(members, first)
        output.write(name, content)
        output.write(index_name(name), index_bytes(len(content), lines))
        done(len(members))
    return names


def _shard(images: Sequence[CaptionedImage], first: int) -> tuple[bytes, list[dict[str, Any]]]:
    """Return a tar file with these images, of which the first has number `first`, and its lines."""
    file = io.BytesIO()
    lines = []
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number, image in enumerate(images, start=first):
            try:
                content = read_bytes(image.path)
            except OSError as error:
                raise DataError(f"{image.path}: cannot be read ({error.strerror})") from None
            facts = {"id": image.image_id, "image": image.path.name, "captions": image.captions}
            key = f"{number:09d}"
            name = key + _suffix(image.path)
            lines.append(
                {"member": name, "name": facts["image"], **_add_member(tar, name, content)}
            )
            lines[-1] |= {"id": facts["id"], "captions": facts["captions"]}
            _add_member(tar, f"{key}.json", json.dumps(facts, ensure_ascii=False).encode())
    return file.getvalue(), lines


def _suffix(path: ImagePath) -> str:
    name = path.member if isinstance(path, TarMember) else path.name
    return posixpath.splitext(name)[1].lower()


def _add_member(tar: tarfile.TarFile, name: str, content: bytes) -> dict[str, int]:
    """Add a member to a tar file; return the offset and the size of its bytes."""
    member = tarfile.TarInfo(name)  # without time and owner: the same input gives the same bytes
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
    return {"offset": tar.offset - -(-len(content) // 512) * 512, "size": len(content)}
