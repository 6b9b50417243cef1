"""WebDataset shards, as `captioner shards` writes them, or others with captions as JSON or text.

Where the images of `NAME.tar` are stands in an index, `NAME.index.jsonl` alongside it: a line with
the size of the tar file, then one for each image.
"""

from __future__ import annotations

import contextlib
import glob
import io
import json
import os
import posixpath
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from captioner.data.captioned import CaptionedImage
from captioner.data.layouts import SPLIT_NAMES, Annotations, DataFiles, NamedImage, split_name
from captioner.data.tars import TarMember, is_image, sample_key
from captioner.data.text_files import normalize_spaces, quoted
from captioner.errors import CaptionerError, DataError, listed
from captioner.files import save_bytes
from captioner.storage import Folder, expand, fetch, file_system, is_url

_OF_SPLIT = "{split}-[0-9]*.tar"
_NUMBERED = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.tar")


class WebDataset:
    """Tar files of samples: images with their captions as JSON or text of the same key.

    `file` is the pattern of their names, with *, ? and {00..99}; `{split}` in it is the name of the
    split. It is `{split}-[0-9]*.tar` by default, or else `*.tar`, without splits. The captions of
    an image are in the JSON with its key (`captions`, or img2dataset's `caption`), or else in its
    text. Ids are those of the data set that the shards were written from, else shard and key.
    """

    def recognise(self, data: DataFiles) -> str | None:
        if data.file is not None:
            return f"WebDataset shards {data.file}" if ".tar" in str(data.file) else None
        tars = data.candidates("*.tar")
        return f"WebDataset shards: {listed(list(map(data.relative, tars)), 3)}" if tars else None

    def read(self, data: DataFiles, splits: Sequence[str]) -> Annotations:
        images: dict[int | str, NamedImage] = {}
        for split, names in _tars(data, splits).items():
            _check_complete(names)
            for image in _read_shards(names):
                if image.image_id in images:
                    raise DataError(
                        f"{image.name}: its id {image.image_id} is also that of "
                        f"{images[image.image_id].name}; take one split at a time, or write the "
                        "shards again with ids that differ"
                    )
                images[image.image_id] = replace(image, split=split)
        return Annotations(list(images.values()), [Path(str(data.root))])


def _tars(data: DataFiles, splits: Sequence[str]) -> dict[str, list[str]]:
    """Return the tar files of each split, or all under the name "" where they have no splits."""
    root = str(data.root)
    if os.path.isfile(root):
        return {"": [root]}
    base = root if is_url(root) else glob.escape(root)
    pattern = str(data.file or _OF_SPLIT)
    if "{split}" not in pattern:
        return {"": expand(posixpath.join(base, pattern))}
    found: set[str] = set()
    if data.file is None and not data.is_remote:
        names = [path.name for path in data.candidates("*.tar")]
        found = {m[1] for name in names if (m := re.fullmatch(r"(.+?)-\d.*\.tar", name))}
        if not {split_name(name) for name in found} & SPLIT_NAMES and not found & set(splits):
            return {"": expand(posixpath.join(base, "**", "*.tar"))}
        splits = splits or sorted(found)
    other_names = {split_name(name): name for name in sorted(found)}
    named = {
        split: split if split in found else other_names.get(split_name(split), split)
        for split in splits or ("train", "val")
    }
    return {
        split: expand(posixpath.join(base, pattern.replace("{split}", name)))
        for split, name in named.items()
    }


def _check_complete(names: Sequence[str]) -> None:
    """Refuse a set of numbered shards that is not complete, or mixed with another."""
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


def _read_shards(names: Sequence[str]) -> list[NamedImage]:
    """Return the images of tar files; one without an index is read through, and gets one here."""
    indexes = fetch(_index_name(name) for name in names if is_url(name))
    images: list[NamedImage] = []
    for name in names:
        try:
            content = indexes.get(_index_name(name)) or Path(_index_name(name)).read_bytes()
        except OSError as error:
            content = error
        if isinstance(content, FileNotFoundError):
            content = _make_index(name)
        if isinstance(content, Exception):
            raise DataError(f"{_index_name(name)}: cannot be read ({content})")
        images += _parse(name, content)
    return images


def _index_name(tar: str) -> str:
    """Return the path or URL of a tar file's index."""
    return tar.removesuffix(".tar") + ".index.jsonl"


def _index_bytes(tar_bytes: int, lines: Iterable[dict[str, Any]]) -> bytes:
    """Return an index; a line has `member`, `name`, `offset`, `size`, `id` and `captions`."""
    content = [{"tar_bytes": tar_bytes}, *lines]
    return b"".join(_json(line) + b"\n" for line in content)


def _json(content: Mapping[str, Any]) -> bytes:
    """Return JSON in UTF-8, in which half of a surrogate pair stays as the escape of JSON."""
    return json.dumps(content, ensure_ascii=False).encode(errors="backslashreplace")


def _parse(tar: str, content: bytes) -> list[NamedImage]:
    """Return the images of an index, whose tar file must have the size that it names."""
    try:
        # Not splitlines: a name may hold another sign that ends a line.
        head, *lines = map(json.loads, content.decode().removesuffix("\n").split("\n"))
        expected = head["tar_bytes"]
        system, path = file_system(tar)
        found, version = system.info(path)["size"], system.ukey(path)
        images = [
            NamedImage(
                TarMember(tar, line["member"], line["name"], line["offset"], line["size"], version),
                tuple(line["captions"]),
                line["id"],
            )
            for line in lines
        ]
    except OSError as error:
        raise DataError(f"{tar}: cannot be read ({error})") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{_index_name(tar)} is damaged ({error!r}); remove it, and it will be made again"
        ) from None
    if found != expected:
        raise DataError(
            f"{tar} has {found} bytes, not the {expected} that {_index_name(tar)} says; copy the "
            "tar file again, or remove its index if that is of another"
        )
    return images


def _make_index(tar: str) -> bytes:
    """Read a whole tar file and return its index, which is also stored next to it if possible."""
    try:
        system, path = file_system(tar)
        with system.open(path, "rb") as file:
            lines = list(_scan(tar, file))
            size = file.seek(0, io.SEEK_END)
    except (OSError, tarfile.TarError, EOFError) as error:
        raise DataError(
            f"{tar} is no tar file that can be read to its end ({error}); copy it again, and "
            "uncompress it if it is compressed"
        ) from None
    content = _index_bytes(size, lines)
    if not is_url(tar):
        with contextlib.suppress(CaptionerError):  # where it cannot be written it is made each time
            save_bytes(content, _index_name(tar))
    return content


def _scan(tar: str, file: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the lines of a tar file's index; of images with one key, the first counts."""
    images: dict[str, tarfile.TarInfo] = {}
    texts: dict[str, dict[str, str]] = {}
    with tarfile.open(fileobj=file, mode="r:") as members:
        for member in members:
            key, extension = sample_key(member.name)
            if is_image(member):
                images.setdefault(key, member)
            elif key and extension in ("json", "txt") and (stream := members.extractfile(member)):
                texts.setdefault(key, {})[extension] = stream.read().decode(errors="replace")
    for key, image in images.items():
        facts = _facts(f"{tar}::{key}", texts.get(key, {}))
        yield {
            "member": image.name,
            "name": facts.get("image", posixpath.basename(image.name)),
            "offset": image.offset_data,
            "size": image.size,
            "id": facts.get("id", f"{posixpath.basename(tar).removesuffix('.tar')}/{key}"),
            "captions": facts["captions"],
        }


def _facts(sample: str, texts: dict[str, str]) -> dict[str, Any]:
    """Return what the JSON and the text of a sample say: captions, and perhaps image and id.

    Captions are `captions` or `caption` of the JSON (as img2dataset has it), else the text.
    """
    try:
        facts = json.loads(texts.get("json", "{}"))
        captions = facts.get("captions", facts.get("caption", texts.get("txt"))) or []
        captions = [captions] if isinstance(captions, str) else captions
        found = {"captions": [text for each in captions if (text := normalize_spaces(each))]}
        return found | {
            name: facts[name]
            for name, kinds in (("image", (str,)), ("id", (str, int)))
            if isinstance(facts.get(name), kinds)
        }
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise DataError(
            f"{sample}.json: expected an object with captions, a list of texts, not "
            f"{quoted(texts.get('json', ''))}"
        ) from None


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
    if others := sorted(existing - {each for name in names for each in (name, _index_name(name))}):
        raise DataError(
            f"{output.name} holds other shards of split {split} ({others[0]}); remove them, or "
            "choose another --output"
        )
    for number, name in enumerate(names):
        first = number * photos_per_shard
        members = images[first : first + photos_per_shard]
        content, lines = _shard(members, first)
        output.write(name, content)
        output.write(_index_name(name), _index_bytes(len(content), lines))
        done(len(members))
    return names


def _shard(images: Sequence[CaptionedImage], first: int) -> tuple[bytes, list[dict[str, Any]]]:
    """Return a tar file with these images, of which the first has number `first`, and its lines."""
    file = io.BytesIO()
    lines = []
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number, image in enumerate(images, start=first):
            try:
                content = image.path.read_bytes()
            except OSError as error:
                raise DataError(f"{image.path}: cannot be read ({error.strerror})") from None
            path, key = image.path, f"{number:09d}"
            source = path.member if isinstance(path, TarMember) else path.name
            name = key + posixpath.splitext(source)[1].lower()
            place = _add_member(tar, name, content)
            facts = {"id": image.image_id, "image": path.name, "captions": image.captions}
            _add_member(tar, f"{key}.json", _json(facts))
            lines.append(
                {
                    "member": name,
                    "name": path.name,
                    **place,
                    "id": image.image_id,
                    "captions": image.captions,
                }
            )
    return file.getvalue(), lines


def _add_member(tar: tarfile.TarFile, name: str, content: bytes) -> dict[str, int]:
    """Add a member to a tar file; return the offset and the size of its bytes."""
    member = tarfile.TarInfo(name)  # without time and owner: the same input gives the same bytes
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
    return {"offset": tar.offset - -(-len(content) // 512) * 512, "size": len(content)}
