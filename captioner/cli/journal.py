"""The journal of an output folder: which photo each picture shows, and what is done.

`captions.jsonl` has one JSON object a photo: `image` (its absolute path), `bytes` and `modified_ns`
of its file, `settings` (a digest of the model and the options), `name`, `caption`, `confidence`,
`unsure` and `pictures`. Later lines of a photo replace earlier ones.
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

    Nothing is written before `begin`.

    Args:
        folder: The output folder.
        settings: Digest of all that decides a caption and its pictures: `settings_digest`.

    Raises:
        CaptionerError: The journal cannot be read, or the file is another program's.
    """

    def __init__(self, folder: Path, settings: str) -> None:
        self.file = folder / JOURNAL
        self.settings = settings
        self.records, is_of_others = read_journal(self.file)
        if is_of_others:
            raise CaptionerError(
                f"{self.file} is no journal of captioner, so it is left as it is; choose another "
                "--output"
            )

    def begin(self) -> None:
        """Write the file anew, without the lines that later ones replaced, or that were cut short.

        Raises:
            CaptionerError: It cannot be written.
        """
        content = "".join(f"{json.dumps(record)}\n" for record in self.records.values())
        save_bytes(content.encode(), self.file)

    def done(self, image: Path) -> dict[str, Any] | None:
        """Return the record of a photo that needs no work: same file, same settings, all there."""
        record = self.records.get(os.path.abspath(image))
        if record is None or record.get("settings") != self.settings:
            return None
        if any(record.get(key) != value for key, value in _identity(image).items()):
            return None
        pictures = [self.file.parent / name for name in record["pictures"]]
        return record if all(map(_has_content, pictures)) else None

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
        self._append(record)

    def reopen(self, image: Path) -> None:
        """Note that a photo's pictures are drawn anew: until it is added again, it is not done.

        Or an interruption would leave a picture of these settings as one of the earlier ones.

        Raises:
            CaptionerError: The disk is full.
        """
        record = self.records.get(os.path.abspath(image))
        if record is not None and record.get("settings"):
            self._append({**record, "settings": ""})

    def _append(self, record: dict[str, Any]) -> None:
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

    def unknown_pictures(self, names: Iterable[str]) -> list[str]:
        """Return the pictures under these names that the journal does not know."""
        known = {picture for record in self.records.values() for picture in record["pictures"]}
        names = {name.casefold() for name in names}
        found = []
        folder = self.file.parent
        members = set(os.listdir(folder)) if folder.is_dir() else set()
        for member in sorted(members - known):
            name, _, _ = member.casefold().rpartition(".")
            stem, _, part = name.rpartition(".")
            if part in ("attention", "comparison") and stem in names:
                found.append(member)
        return found


def read_journal(file: Path) -> tuple[dict[str, dict[str, Any]], bool]:
    """Return the records of a journal by their photo, and whether it is another program's file.

    Lines that are no records, such as one that a killed run cut short, are left out; a file that is
    missing has none.

    Raises:
        CaptionerError: It is there and cannot be read.
    """
    try:
        lines = [line for line in file.read_bytes().splitlines() if line.strip()]
    except (FileNotFoundError, NotADirectoryError):
        return {}, False
    except OSError as error:
        raise CaptionerError(f"{file} cannot be read ({error.strerror or error})") from None
    records: dict[str, dict[str, Any]] = {}
    is_of_others, unlike_records = False, False
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:  # cut short or damaged
            unlike_records = unlike_records or not line.startswith(b'{"image": ')
            continue
        if not (isinstance(record, dict) and {"image", "name", "pictures"} <= record.keys()):
            is_of_others = True
        elif _is_usable(record):
            records[record["image"]] = record
    return records, is_of_others or (unlike_records and not records)


def _is_usable(record: dict[str, Any]) -> bool:
    """Return whether a record's name and pictures name files in its folder, and none outside."""
    image, name, pictures = record["image"], record["name"], record["pictures"]
    return (
        isinstance(image, str)
        and isinstance(pictures, list)
        and all(
            isinstance(each, str) and each not in ("", ".", "..") and not set("/\\\0") & set(each)
            for each in [name, *pictures]
        )
    )


def _has_content(picture: Path) -> bool:
    """Return whether a picture is there; an empty one is what a full disk or a power cut left."""
    try:
        return picture.stat().st_size > 0
    except OSError:
        return False


def pictures_in(folder: Path) -> set[str]:
    """Return the file names of the pictures that a folder's journal lists, none without one."""
    try:
        records, _ = read_journal(folder / JOURNAL)
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
