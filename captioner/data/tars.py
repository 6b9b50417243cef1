"""WebDataset shards: tar files whose members with one key are an image and its captions.

Images are read by their place in the tar file, in any order, so that the order of training, its
seeds and its resumption are those of single files. The places stand in an index, `NAME.index.jsonl`
alongside `NAME.tar`: a line with the size of the tar file, then one for each image.
"""

from __future__ import annotations

import contextlib
import io
import json
import posixpath
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

from captioner.data.text_files import normalize_spaces, quoted
from captioner.errors import CaptionerError, DataError

_TEXTS = ("json", "txt")


@dataclass(frozen=True, slots=True)
class TarMember:
    """An image in a tar file; used in place of the path of an image.

    Attributes:
        name: Name of the image, as in the data set that the shards were written from.
        offset, size: Where its bytes begin and how many there are.
        version: Differs when the tar file has changed.
    """

    tar: str
    member: str
    name: str
    offset: int
    size: int
    version: str

    def __str__(self) -> str:
        return f"{self.tar}::{self.member}"

    def read(self) -> bytes:
        """Return the image file's bytes.

        Raises:
            DataError: They cannot be read. Unlike a damaged image, this one is not left out: if the
                network fails, every image would be.
        """
        (content,) = read_members([self])
        return content


ImagePath: TypeAlias = Path | TarMember


def file_facts(path: ImagePath) -> tuple[int, int | str]:
    """Return the size of an image file in bytes, and a value that differs when it has changed.

    Raises:
        OSError: There is no such file.
    """
    if isinstance(path, TarMember):
        return path.size, path.version
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def read_bytes(path: ImagePath) -> bytes:
    """Return the bytes of an image file."""
    return path.read() if isinstance(path, TarMember) else path.read_bytes()


def read_members(members: Sequence[TarMember]) -> list[bytes]:
    """Return the bytes of images in tar files; those behind URLs are read concurrently.

    Raises:
        DataError: One cannot be read.
    """
    from captioner.storage import fetch_ranges, is_url

    remote = [member for member in members if is_url(member.tar)]
    fetched = fetch_ranges([(m.tar, m.offset, m.offset + m.size) for m in remote])
    contents = iter(fetched)
    found = []
    for member in members:
        content: bytes | Exception
        if is_url(member.tar):
            content = next(contents)
        else:
            try:
                with open(member.tar, "rb") as file:
                    file.seek(member.offset)
                    content = file.read(member.size)
            except OSError as error:
                content = error
        if isinstance(content, Exception) or len(content) != member.size:
            reason = content if isinstance(content, Exception) else "the tar file ends before it"
            raise DataError(
                f"{member}: cannot be read ({reason}); see that the tar file is there and whole"
            )
        found.append(content)
    return found


def sample_key(name: str) -> tuple[str, str]:
    """Return key and extension of a tar member: `a/1.seg.png` is `seg.png` of `a/1`.

    Both are empty for a member that WebDataset skips.
    """
    folder, base = posixpath.split(name)
    key, _, extension = base.partition(".")
    return (posixpath.join(folder, key), extension.lower()) if key and extension else ("", "")


def is_image(member: tarfile.TarInfo) -> bool:
    """Return whether a tar member is an image of a sample."""
    from captioner.data.codecs import HEIF_SUFFIXES
    from captioner.data.transforms import IMAGE_SUFFIXES

    suffix, suffixes = posixpath.splitext(member.name)[1].lower(), IMAGE_SUFFIXES | HEIF_SUFFIXES
    return member.isfile() and bool(sample_key(member.name)[0]) and suffix in suffixes


@dataclass(frozen=True)
class Sample:
    """An image of a shard with its captions."""

    image: TarMember
    image_id: int | str
    captions: tuple[str, ...]


def read_shards(names: Sequence[str]) -> list[Sample]:
    """Return the samples of tar files, in order.

    A tar file without an index is read once through, and on this machine gets one.

    Raises:
        DataError: A tar file or its index cannot be used.
    """
    from captioner.storage import fetch, is_url

    indexes = fetch(index_name(name) for name in names if is_url(name))
    samples: list[Sample] = []
    for name in names:
        try:
            content = indexes.get(index_name(name)) or Path(index_name(name)).read_bytes()
        except OSError as error:
            content = error
        if isinstance(content, FileNotFoundError):
            content = _make_index(name)
        if isinstance(content, Exception):
            raise DataError(f"{index_name(name)}: cannot be read ({content})")
        samples += _parse(name, content)
    return samples


def index_name(tar: str) -> str:
    """Return the path or URL of a tar file's index."""
    return tar.removesuffix(".tar") + ".index.jsonl"


def index_bytes(tar_bytes: int, lines: Iterable[dict[str, Any]]) -> bytes:
    """Return the content of an index.

    Args:
        lines: For each image `member`, `name`, `offset`, `size`, `id` and `captions`.
    """
    content = [{"tar_bytes": tar_bytes}, *lines]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in content).encode()


def _parse(tar: str, content: bytes) -> list[Sample]:
    """Return the samples of an index, whose tar file must have the size that it names."""
    from captioner.storage import file_system

    try:
        # Not splitlines: a name may hold another sign that ends a line.
        head, *lines = map(json.loads, content.decode().removesuffix("\n").split("\n"))
        expected = head["tar_bytes"]
        system, path = file_system(tar)
        found, version = system.info(path)["size"], system.ukey(path)
        samples = [
            Sample(
                TarMember(tar, line["member"], line["name"], line["offset"], line["size"], version),
                line["id"],
                tuple(line["captions"]),
            )
            for line in lines
        ]
    except OSError as error:
        raise DataError(f"{tar}: cannot be read ({error})") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{index_name(tar)} is damaged ({error!r}); remove it, and it will be made again"
        ) from None
    if found != expected:
        raise DataError(
            f"{tar} has {found} bytes, not the {expected} that {index_name(tar)} says; copy the "
            "tar file again, or remove its index if that is of another"
        )
    return samples


def _make_index(tar: str) -> bytes:
    """Read a whole tar file and return its index, which is also stored next to it if possible."""
    from captioner.files import save_bytes
    from captioner.storage import file_system, is_url

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
    content = index_bytes(size, lines)
    if not is_url(tar):
        with contextlib.suppress(CaptionerError):  # where it cannot be written it is made each time
            save_bytes(content, index_name(tar))
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
            elif key and extension in _TEXTS and (stream := members.extractfile(member)):
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

    Raises:
        DataError: The JSON has another form.
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
