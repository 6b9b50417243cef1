"""WebDataset shards, such as those of img2dataset: tar files of images and their captions."""

from __future__ import annotations

import itertools
import json
import posixpath
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from captioner.data.formats.table import texts_of
from captioner.data.image_finder import SUFFIXES
from captioner.data.layouts import Annotations, DataFiles, NamedImage, Recognised
from captioner.data.splits import SPLIT_NAMES, TarMember, split_name, split_of_folder
from captioner.errors import DataError, listed


def webdataset(data: DataFiles) -> Recognised | None:
    """Find tar files whose members with one key are an image and its captions, as JSON or text.

    `train-0001.tar` and `train/0001.tar` are of the split `train`. Ids are the `id` in the JSON, or
    else tar file and key.
    """
    tars = {path: data.relative(path) for path in data.candidates("*.tar")}

    def read() -> Annotations:
        splits = list(map(_split, tars.values()))
        plain = {split_name(re.sub(r"\d{4}$", "", split)) for split in splits}  # without a year
        if not all(splits) or not SPLIT_NAMES & plain:
            splits = [""] * len(tars)
        images = map(_images, tars, tars.values(), splits)
        return Annotations(list(itertools.chain.from_iterable(images)), [data.folder])

    return Recognised(f"WebDataset shards: {listed(tars.values(), 3)}", read) if tars else None


def sample_key(name: str) -> tuple[str, str]:
    """Return key and extension of a tar member, `a/1` and `seg.png`, empty if it has none."""
    folder, base = posixpath.split(name)
    key, _, extension = base.partition(".")
    return (posixpath.join(folder, key), extension.lower()) if key and extension else ("", "")


def is_image(member: tarfile.TarInfo) -> bool:
    """Return whether a tar member is an image of a sample."""
    key, extension = sample_key(member.name)
    return member.isfile() and bool(key) and f".{extension.rpartition('.')[2]}" in SUFFIXES


def _split(name: str) -> str:
    """Return what may be the split of a tar file: `train` of train/0001.tar or train-0001.tar."""
    prefix = re.fullmatch(r"(.+?)-\d.*\.tar", posixpath.basename(name))
    return split_of_folder(name) or (prefix[1] if prefix else "")


def _images(path: Path, name: str, split: str) -> Iterator[NamedImage]:
    """Yield the images of a tar file; of images with one key, the first counts."""
    images: dict[str, tarfile.TarInfo] = {}
    texts: dict[str, dict[str, str]] = {}
    try:
        with tarfile.open(path, "r:") as members:
            for member in members:
                key, extension = sample_key(member.name)
                if is_image(member):
                    images.setdefault(key, member)
                elif extension in ("json", "txt") and (stream := members.extractfile(member)):
                    texts.setdefault(key, {})[extension] = stream.read().decode(errors="replace")
        changed = path.stat().st_mtime_ns
    except (OSError, tarfile.TarError, EOFError) as error:
        raise DataError(
            f"{path} cannot be read as a tar file ({error}); copy it again, or uncompress it"
        ) from None
    for key, image in images.items():
        place = TarMember(path, image.name, image.offset_data, image.size, changed)
        text = texts.get(key, {})
        try:
            facts = json.loads(text.get("json", "{}"))
            captions = texts_of([facts.get("captions", facts.get("caption", text.get("txt")))])
        except (ValueError, AttributeError, RecursionError):  # reported as one without a caption
            facts, captions = {}, None
        image_id = facts.get("id")
        if not isinstance(image_id, (int, str)):
            image_id = f"{name.removesuffix('.tar')}/{key}"
        yield NamedImage(place, captions or (), image_id, split)
