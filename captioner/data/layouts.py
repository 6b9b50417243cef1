"""Data sets on disk: which layout of `captioner.data.formats` they have, and their splits."""

from __future__ import annotations

import hashlib
import itertools
import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path

from captioner.data.checks import Markers, is_caption
from captioner.data.image_finder import find_images, list_files, plain_name
from captioner.data.records import read_bytes, read_json
from captioner.data.splits import CaptionedImage, ImagePath, Split, TarMember, split_name
from captioner.errors import DataError, listed
from captioner.log import logger
from captioner.registry import DATA_FORMATS

VAL_SHARE = 0.1  # of the photos of a data set without splits
# Folders next to which the rest of a data set lies.
_FOLDERS_OF_CAPTIONS = frozenset(("annotations", "captions", "caption_datasets", "flickr8k_text"))
_FOLDERS_OF_IMAGES = frozenset(
    "images flickr8k_dataset flicker8k_dataset flickr30k-images flickr30k_images "
    "train2014 val2014 train2017 val2017".split()
)


@dataclass(frozen=True)
class NamedImage:
    """An image as a data set's files name it."""

    name: str | TarMember  # path from one of `Annotations.folders`, or a place in a tar file
    captions: tuple[str, ...]
    image_id: int | str  # in COCO results
    split: str = ""  # empty in a data set without splits


@dataclass(frozen=True)
class Annotations:
    """What the files of a data set say."""

    images: list[NamedImage]
    folders: Sequence[Path]  # where the names of images begin, the usual place first
    problems: Sequence[str] = ()  # what cannot be used, such as captions of no image


@dataclass(frozen=True)
class Recognised:
    """A layout that fits: what lies there in words, and a function that reads it."""

    title: str
    read: Callable[[], Annotations]


@dataclass(frozen=True)
class DataFiles:
    """Where a data set lies, and how to read it, as in `captioner.config.settings.DataConfig`."""

    format: str = "auto"
    root: str | Path = ""
    file: str | Path | None = None
    coco_splits: str | Path | None = None
    image_column: str | None = None
    caption_column: str | None = None
    strip_markers: bool = False

    @cached_property
    def named_file(self) -> Path | None:
        """The captions file that the user names: `file`, below the root or not, or the root."""
        if self.file is None:
            return Path(self.root) if os.path.isfile(self.root) else None
        for path in (Path(self.root, self.file), Path(self.file)):
            if os.path.isfile(path):  # Path.is_file raises for a name that no file can have
                return path
        raise DataError(f"there is no file {Path(self.root, self.file)}; correct its name")

    @cached_property
    def folder(self) -> Path:
        """The folder with everything: the root, the folder of a file, or the one above.

        A folder of captions alone, or of images alone, is a part of a data set.
        """
        folder = Path(self.root)
        while True:
            name = folder.absolute().name.lower()
            images_alone = name in _FOLDERS_OF_IMAGES and not list_files(folder)[1]
            if not (os.path.isfile(folder) or images_alone or name in _FOLDERS_OF_CAPTIONS):
                return folder
            folder = folder.absolute().parent

    @cached_property
    def _listed(self) -> tuple[list[Path], list[Path]]:
        return list_files(self.folder)

    @property
    def images(self) -> list[Path]:
        return self._listed[0]

    @property
    def others(self) -> list[Path]:
        """The files that are not images."""
        return self._listed[1]

    def candidates(self, *patterns: str) -> list[Path]:
        """Return the file that the user names, or else the files below the root of these names."""
        files = self.others if self.named_file is None else [self.named_file]
        return [f for f in files if any(fnmatch(f.name.lower(), p.lower()) for p in patterns)]

    def json_files(self, *keys: str) -> list[Path]:
        """Return the JSON files, as `candidates`, that have all of these keys."""
        needed = [f'"{key}"'.encode() for key in keys]
        files = ((path, read_bytes(path)) for path in self.candidates("*.json"))
        return [path for path, content in files if all(key in content for key in needed)]

    def relative(self, path: Path) -> str:
        """Return a path as it is named in messages: from the folder."""
        return os.path.relpath(path, self.folder)


class CaptionedData:
    """A data set whose layout is known.

    Args:
        val_share: Share of the photos that is held out for validation where there are no splits.
        val_split: What is validated on: where there is no `val` and this is it, that share is taken
            from `train`.
    """

    def __init__(
        self, data: DataFiles, *, val_share: float = VAL_SHARE, val_split: str | None = None
    ) -> None:
        self.data = data
        self.val_share = val_share
        self.divides_train = split_name(val_split or "") == "val"
        self.format, self._recognised = _recognised(data)

    @cached_property
    def _annotations(self) -> Annotations:
        return self._recognised.read()

    @cached_property
    def _named(self) -> list[NamedImage]:
        if not self._annotations.images:
            raise DataError(f"{self.data.root} is empty: its files name no image")
        return [replace(i, split=split_name(i.split)) for i in self._annotations.images]

    @cached_property
    def _found(self) -> dict[str, Path | None]:
        names = [image.name for image in self._named if isinstance(image.name, str)]
        return find_images(names, self._annotations.folders, self.data.images)

    def _file(self, image: NamedImage) -> ImagePath | None:
        return self._found[image.name] if isinstance(image.name, str) else image.name

    @cached_property
    def _markers(self) -> Markers:
        return Markers.of(text for image in self._named for text in image.captions)

    def split(self, name: str) -> Split:
        """Return a split, or several joined with "+".

        In a data set without splits, `val` is a share of the photos that is chosen by a hash of
        their names, `train` is all others, and any other name is all photos.
        """
        chosen = self._chosen(name)
        names: dict[int | str, str | TarMember] = {}
        for image in chosen:
            other = names.setdefault(image.image_id, image.name)
            if other != image.name:
                raise DataError(
                    f"{self.data.root}: the image id {image.image_id} is that of {other} and of "
                    f"{image.name}; number the images apart, or take one split at a time"
                )
        return self._split(chosen)

    def split_to_score(self, name: str) -> Split:
        """Return a split, as `split`, with warnings of what no score should be read without."""
        split = self.split(name)
        if not self.split_names and split_name(name) not in ("train", "val"):
            logger.warning(
                f"{self.data.root} has no splits, so all of its photos are used, those that a "
                "model learned from too; the split val is those that training held out"
            )
        return split

    def everything(self) -> Split:
        """Return all images of all splits."""
        return self._split(self._named)

    def references(self, name: str) -> list[CaptionedImage]:
        """Return the captioned images of a split, whether they are on disk or not."""
        images = (self._captioned(named)[0] for named in self._chosen(name))
        return [image for image in images if image.captions]

    @cached_property
    def split_names(self) -> list[str]:
        """The splits, each once: train and training are one. Empty in a data set without splits."""
        return list(dict.fromkeys(image.split for image in self._named if image.split))

    @property
    def _lacks_val(self) -> bool:
        """Whether there is a split to train on and none to validate on."""
        return "train" in self.split_names and "val" not in self.split_names

    def description(self) -> str:
        """Return in one line what was recognised and read."""
        on_disk = sum(self._file(image) is not None for image in self._named)
        folders, root = self._annotations.folders, self.data.folder
        elsewhere = Counter(
            os.path.relpath(path.parent, root)
            for name, path in self._found.items()
            if path and not any(path == folder / name for folder in folders)
        )
        places = ["its folder" if p == "." else f"{p}/" for p, _ in elsewhere.most_common(3)]
        found = f" in {' and '.join(places)}" if places else ""
        names = ", ".join(self.split_names)
        splits = f"splits {names}" if names else "no splits"
        if self.val_share and (not names or (self._lacks_val and self.divides_train)):
            share = f"{self.val_share:.0%}" + " of train" * (len(self.split_names) > 1)
            splits += f" ({share} are held out for validation, by a hash of their names)"
        return f"{self.data.root}: {self._recognised.title}, {on_disk:,} photos{found}, {splits}"

    def _split(self, chosen: Sequence[NamedImage]) -> Split:
        markers = "" if self.data.strip_markers else str(self._markers)
        split = Split([], [], problems=self._annotations.problems, markers=markers)
        for named in chosen:
            image, wordless = self._captioned(named)
            split.wordless.extend((image.path, text) for text in wordless)
            if self._file(named) is None:
                split.missing.append(image.path)
            else:
                (split.images if image.captions else split.uncaptioned).append(image)
        if split.images or split.uncaptioned:
            return split
        names, there = [str(named.name) for named in chosen], self.data.images
        other = f", such as {self.data.relative(there[0])}" if there else ""
        raise DataError(
            f"none of the {len(names)} images that {self.data.root} names is on disk, the first is "
            f"expected at {self._annotations.folders[0] / names[0]}; there are "
            f"{len(there) or 'no'} photos below {self.data.folder}{other}. Put the photos there "
            "(download those behind addresses), or correct the path or the names"
        )

    def _captioned(self, named: NamedImage) -> tuple[CaptionedImage, list[str]]:
        """Return an image with its captions, and the texts that have no words, so are none."""
        texts = [" ".join(text.split()) for text in named.captions]
        if self.data.strip_markers:
            texts = list(map(self._markers.stripped, texts))
        path = self._file(named) or self._annotations.folders[0] / str(named.name)
        image = CaptionedImage(path, tuple(filter(is_caption, texts)), named.image_id)
        return image, list(itertools.filterfalse(is_caption, texts))

    def _chosen(self, name: str) -> list[NamedImage]:
        wanted = {split_name(part) for part in name.split("+")}
        available = self.split_names
        divided = wanted == {"val"} or (self.divides_train and wanted == {"train"})
        if not available or (self._lacks_val and divided):
            images = [i for i in self._named if not available or i.split == "train"]
            names = [str(image.name) for image in images]
            held_out = held_out_for_validation(names, self.val_share) if self.val_share else set()
            if wanted not in ({"train"}, {"val"}) or not 0 < len(held_out) < len(names):
                return images
            is_val = wanted == {"val"}
            return [image for i, image in enumerate(images) if (i in held_out) == is_val]
        chosen = set()
        for part in wanted:
            years = {each for each in available if re.sub(r"\d{4}$", "", each) == part}  # COCO's
            if part not in available and len(years) != 1:
                raise DataError(
                    f"{self.data.root} has no split {part!r}; the splits there are: "
                    f"{', '.join(sorted(available))}; choose with --split "
                    "(data.train_split, data.val_split)"
                )
            chosen |= {part} if part in available else years
        return [image for image in self._named if image.split in chosen]


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


def _recognised(data: DataFiles) -> tuple[str, Recognised]:
    """Return the name of the one layout that fits, and what was recognised."""
    if not os.path.exists(data.root):  # Path.exists raises for some names
        raise DataError(f"there is no file or folder {data.root}; correct the path of the data")
    names = DATA_FORMATS if data.format == "auto" else (data.format,)
    found = {name: each for name in names if (each := DATA_FORMATS[name](data))}
    # A table or sidecars may accompany a data set of a certain name.
    certain = {name: each for name, each in found.items() if name not in ("table", "sidecars")}
    found = certain or found
    if len(found) > 1:
        titles = "; ".join(each.title for each in found.values())
        raise DataError(
            f"{data.root} holds several data sets: {titles}. Choose one with --format "
            f"{' or --format '.join(found)} (data.format)"
        )
    if not found:
        raise DataError(_not_recognised(data))
    return next(iter(found.items()))


def _not_recognised(data: DataFiles) -> str:
    """Say that no layout fits, what lies there, and where the layouts are listed."""
    from captioner.data.formats.table import columns_of, possible_tables

    layout = "any layout that is recognised" if data.format == "auto" else f"format {data.format}"
    parts = [f"{data.root} holds no data set of {layout}"]
    if not os.path.isfile(data.root):
        others = [data.relative(path) for path in data.others]
        files = f"these other files: {listed(others, 5)}" if others else "no other files"
        parts.append(f"it has {len(data.images)} photos and {files}")
    for path in possible_tables(data) if data.format in ("auto", "table") else ():
        columns = columns_of(path)
        if columns is None and path.suffix.lower() == ".json":
            read_json(path)  # its DataError says where the file is damaged
        if columns and columns[1:] and path.suffix.lower() != ".txt":
            chosen = [c for c in (data.image_column, data.caption_column) if c and c not in columns]
            parts.append(
                f"{data.relative(path)} has the columns {listed(columns, 8)}"
                + (f" and not {' or '.join(chosen)}" if chosen else "")
                + " (name two by --image-column and --caption-column, both, or write the heading "
                "image,caption above)"
            )
    end = "Unpack archives and save spreadsheets as CSV; the layouts are listed in docs/data.md"
    return f"{'; '.join(parts)}. {end}"
