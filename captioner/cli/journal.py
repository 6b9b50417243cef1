"""The journal of an output folder: which photo each picture shows, and what is done.

`captions.jsonl` has one JSON object a photo: `image` (its absolute path), `bytes`, `modified_ns`,
`settings` (a digest), `name`, `caption`, `confidence`, `pictures`. A photo's last line counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeVar

from captioner.errors import CaptionerError
from captioner.files import save_bytes

JOURNAL = "captions.jsonl"

PhotoT = TypeVar("PhotoT", Path, str, Path | str)


class Journal:
    """The records of one output folder, by the absolute path of their photo.

    Args:
        folder: The output folder.
        settings: Digest of all that decides a caption and its pictures: `settings_digest`.

    Raises:
        CaptionerError: The journal cannot be read, or the file is another program's.
    """

    def __init__(self, folder: Path, settings: str) -> None:
        self.file = folder / JOURNAL
        self.settings = settings
        self.records = read_journal(self.file)

    def begin(self) -> None:
        """Write the file anew, without the lines that later ones replaced, or that were cut short.

        Raises:
            CaptionerError: It cannot be written.
        """
        content = "".join(f"{json.dumps(record)}\n" for record in self.records.values())
        save_bytes(content.encode(), self.file)

    def done(self, image: Path) -> dict[str, Any] | None:
        """Return the record of a photo that needs no work: same file, same settings, all there."""
        record = self.records.get(os.path.abspath(image), {})
        expected = {"settings": self.settings, **_identity(image)}
        if any(record.get(key) != value for key, value in expected.items()):
            return None
        pictures = [self.file.parent / name for name in record["pictures"]]
        return record if all(picture.is_file() for picture in pictures) else None

    def add(
        self, image: Path, name: str, content: Mapping[str, Any], pictures: Iterable[Path]
    ) -> None:
        """Append a photo's record.

        Raises:
            CaptionerError: The disk is full.
        """
        record = {
            "image": os.path.abspath(image),
            **_identity(image),
            "settings": self.settings,
            "name": name,
            **content,
            "pictures": [picture.name for picture in pictures],
        }
        self.records[record["image"]] = record
        try:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise CaptionerError(f"{self.file} cannot be written ({error.strerror})") from None

    def names(self, proposed: Mapping[PhotoT, str]) -> tuple[dict[PhotoT, str], list[PhotoT]]:
        """Choose for each photo a name that no picture of another photo has.

        A photo keeps the name that it had in an earlier run. Where the proposed one belongs to
        another photo, its folder's name is put in front, then a number behind; these photos are
        returned too.
        """
        owners = {record["name"].casefold(): image for image, record in self.records.items()}
        names: dict[PhotoT, str] = {}
        moved = []
        for path, wanted in proposed.items():
            image = os.path.abspath(path)
            earlier = self.records.get(image, {}).get("name")
            longer = f"{Path(image).parent.name}-{wanted}"
            numbered = (f"{longer}-{number}" for number in count(2))
            choices = chain(filter(None, [earlier]), [wanted, longer], numbered)
            names[path] = next(c for c in choices if owners.get(c.casefold(), image) == image)
            if owners.get(wanted.casefold(), image) != image:
                moved.append(path)
            owners[names[path].casefold()] = image
        return names, moved


def read_journal(file: Path) -> dict[str, dict[str, Any]]:
    """Return the records of a journal by their photo; none where the file is missing.

    A line that a killed run cut short is left out.

    Raises:
        CaptionerError: It cannot be read, or holds other things than records.
    """
    try:
        lines = file.read_bytes().splitlines() if file.is_file() else []
    except OSError as error:
        raise CaptionerError(f"{file} cannot be read ({error.strerror or error})") from None
    records: dict[str, dict[str, Any]] = {}
    for line in lines:
        try:
            record = json.loads(line)
            if not {"image", "name", "pictures"} <= record.keys():
                raise ValueError
        except (ValueError, AttributeError):
            if line.startswith(b'{"image": ') and not line.endswith(b"}"):  # cut short by a kill
                continue
            raise CaptionerError(
                f"{file} is no journal of captioner, so it is left as it is; choose another "
                "--output"
            ) from None
        records[record["image"]] = record
    return records


def pictures_in(folder: Path) -> set[str]:
    """Return the file names of the pictures that a folder's journal lists, none without one."""
    try:
        records = read_journal(folder / JOURNAL)
    except CaptionerError:
        return set()
    return {name for record in records.values() for name in record["pictures"]}


def settings_digest(model_folders: Iterable[Path], options: Mapping[str, Any]) -> str:
    """Return a digest of models (by their manifests) and of options with plain values."""
    from captioner.checkpoint import MANIFEST

    digest = hashlib.sha256(repr(sorted(options.items())).encode(errors="surrogatepass"))
    for folder in model_folders:
        with contextlib.suppress(OSError):  # loading the model will say so
            digest.update((folder / MANIFEST).read_bytes())
    return digest.hexdigest()[:16]


def _identity(image: Path) -> dict[str, int | None]:
    """Return the size and time of change of a photo's file, by which a changed file is noticed."""
    try:
        status = image.stat()
    except (OSError, ValueError):
        return {"bytes": None, "modified_ns": None}
    return {"bytes": status.st_size, "modified_ns": status.st_mtime_ns}
