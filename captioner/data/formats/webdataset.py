"""WebDataset shards, such as those of img2dataset: tar files of images and their captions."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePath

from captioner.data.layouts import Annotations, DataFiles, NamedImage
from captioner.data.splits import SPLIT_NAMES, split_name, split_of_folder
from captioner.data.tars import TarMember, is_image, sample_key
from captioner.data.text_files import quoted
from captioner.errors import DataError, listed


class WebDataset:
    """Tar files whose members with one key are an image and its captions.

    Captions are in the JSON of that key (`captions`, or img2dataset's `caption`), or else in its
    text. `train-0001.tar` and `train/0001.tar` are of the split `train`. Ids are the `id` in the
    JSON, or else tar file and key.
    """

    def recognise(self, data: DataFiles) -> str | None:
        tars = data.candidates("*.tar")
        return f"WebDataset shards: {listed(list(map(data.relative, tars)), 3)}" if tars else None

    def read(self, data: DataFiles) -> Annotations:
        tars = {path: data.relative(path) for path in data.candidates("*.tar")}
        splits = [split_of_folder(name) or _prefix(name) for name in tars.values()]
        if not all(splits) or not SPLIT_NAMES & {split_name(_yearless(s)) for s in splits}:
            splits = [""] * len(tars)
        images = [
            image
            for (path, name), split in zip(tars.items(), splits, strict=True)
            for image in _images(path, name, split)
        ]
        return Annotations(images, [data.folder])


def _prefix(name: str) -> str:
    """Return `train` of train-0001.tar."""
    match = re.fullmatch(r"(.+?)-\d.*\.tar", PurePath(name).name)
    return match[1] if match else ""


def _yearless(split: str) -> str:
    return re.sub(r"\d{4}$", "", split)


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
            f"{path} is no tar file that can be read to its end ({error}); copy it again, and "
            "uncompress it if it is compressed"
        ) from None
    for key, image in images.items():
        place = TarMember(path, image.name, image.offset_data, image.size, changed)
        facts = texts.get(key, {})
        try:
            content = json.loads(facts.get("json", "{}"))
            captions = content.get("captions", content.get("caption", facts.get("txt"))) or []
            captions = [captions] if isinstance(captions, str) else captions
            image_id = content.get("id")
            if not isinstance(image_id, (int, str)):
                image_id = f"{name.removesuffix('.tar')}/{key}"
            yield NamedImage(place, tuple(filter(str.strip, captions)), image_id, split)
        except (ValueError, AttributeError, TypeError, RecursionError):
            raise DataError(
                f"{path}::{key}.json: expected an object with captions, a list of texts, not "
                f"{quoted(facts.get('json', ''))}"
            ) from None
