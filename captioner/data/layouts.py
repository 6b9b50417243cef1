"""Data sets as they lie on disk: recognising their layout and reading their splits.

`captioner.registry.DATA_FORMATS` lists the layouts. Each is a module in `captioner.data.formats`
with a class that has two methods, `recognise` and `read` (see `Layout`). Everything that all
layouts share is here: the names of splits, the photos that are held out where there are none,
captions that are none, and where the images lie.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from captioner.data.caption_checks import Markers
from captioner.data.captioned import CaptionedImage, Split, with_words
from captioner.data.image_finder import FolderTree, ImageFinder
from captioner.data.splits import VAL_SHARE, held_out_for_validation, split_name
from captioner.data.tars import ImagePath, TarMember
from captioner.errors import DataError, listed
from captioner.registry import DATA_FORMATS
from captioner.storage import is_url

AUTO = "auto"
LAYOUTS_PAGE = "docs/data.md"  # the table of layouts
_SPREADSHEET = "save a spreadsheet as CSV first"
_ARCHIVE = "unpack an archive first"
_HINTS = dict.fromkeys((".xlsx", ".xls", ".ods", ".numbers"), _SPREADSHEET) | dict.fromkeys(
    (".zip", ".gz", ".tgz", ".7z", ".rar"), _ARCHIVE
)
# Folders next to which the rest of a data set lies.
_FOLDERS_OF_CAPTIONS = frozenset(("annotations", "captions", "caption_datasets", "flickr8k_text"))
_FOLDERS_OF_IMAGES = frozenset(
    "images flickr8k_dataset flicker8k_dataset flickr30k-images flickr30k_images "
    "train2014 val2014 train2017 val2017".split()
)


@dataclass(frozen=True)
class NamedImage:
    """An image as a data set's files name it.

    Args:
        name: Path from one of `Annotations.folders`, or the image's place in a tar file.
        captions: Its texts as they stand in the file.
        image_id: Its id in COCO results.
        split: The split it belongs to; "" in a data set without splits.
    """

    name: str | TarMember
    captions: tuple[str, ...]
    image_id: int | str
    split: str = ""


@dataclass(frozen=True)
class Annotations:
    """What the files of a data set say.

    Args:
        images: In the order of the files.
        folders: Where the names of images begin, the usual place first.
        problems: Sentences about what cannot be used, such as captions of no image.
    """

    images: list[NamedImage]
    folders: Sequence[Path]
    problems: Sequence[str] = ()


class Layout(Protocol):
    """A way in which data sets lie on disk."""

    def recognise(self, data: DataFiles) -> str | None:
        """Return what lies there in words, with its files, or None if it is another layout.

        Example: "Kaggle's Flickr8k: captions.txt".
        """

    def read(self, data: DataFiles) -> Annotations:
        """Return what the files say.

        Raises:
            DataError: One sentence that names the file and the line or entry.
        """


@dataclass(frozen=True)
class DataFiles:
    """Where a data set lies, and what the user says about it.

    Args:
        format: Name of a layout, or `auto`.
        root, file, coco_splits, image_column, caption_column, strip_markers: As in
            `captioner.config.DataConfig`.
    """

    format: str = AUTO
    root: str | Path = ""
    file: str | Path | None = None
    coco_splits: str | Path | None = None
    image_column: str | None = None
    caption_column: str | None = None
    strip_markers: bool = False

    @cached_property
    def named_file(self) -> Path | None:
        """The captions file that the user names: `file`, in the root or as it stands, or the root.

        Raises:
            DataError: It does not exist.
        """
        if self.file is None:
            return Path(self.root) if os.path.isfile(self.root) else None
        for path in (Path(self.root, self.file), Path(self.file)):
            if os.path.isfile(path):  # Path.is_file raises for a name that no file can have
                return path
        raise DataError(
            f"the captions file {Path(self.root, self.file)} does not exist; correct its name"
        )

    @cached_property
    def folder(self) -> Path:
        """The folder with everything: the root, the folder of a file, or the one above."""
        folder = Path(self.root)
        if os.path.isfile(folder):
            folder = folder.absolute().parent
        while _is_part(folder):
            folder = folder.absolute().parent
        return folder

    @cached_property
    def tree(self) -> FolderTree:
        return FolderTree(self.folder)

    def candidates(self, *patterns: str) -> list[Path]:
        """Return the file that the user names, or else the files below the root of these names."""
        if self.named_file is not None:
            files: Iterable[Path] = [self.named_file]
        else:
            files = self.tree.others
        return [f for f in files if any(fnmatch(f.name.lower(), p.lower()) for p in patterns)]

    def relative(self, path: Path) -> str:
        """Return a path as it is named in messages: from the folder."""
        return os.path.relpath(path, self.folder)


def _is_part(folder: Path) -> bool:
    """Return whether a folder has the captions of a data set alone, or the images alone."""
    name = folder.absolute().name.lower()
    images_alone = name in _FOLDERS_OF_IMAGES and not FolderTree(folder).others
    return images_alone or name in _FOLDERS_OF_CAPTIONS


class CaptionedData:
    """A data set whose layout is known.

    Args:
        data: Where it lies.
        val_share: Share of the photos that is held out for validation where there are no splits.
        divides_train: Whether that share is taken from `train` where there is no other split.

    Raises:
        DataError: There is no such place, or its layout is not recognised.
    """

    def __init__(
        self, data: DataFiles, *, val_share: float = VAL_SHARE, divides_train: bool = False
    ) -> None:
        self.data = data
        self.val_share = val_share
        self.divides_train = divides_train
        self.format, self.title = _recognised(data)

    @cached_property
    def _annotations(self) -> Annotations:
        layout: Layout = DATA_FORMATS[self.format]()
        annotations = layout.read(self.data)
        if not annotations.images:
            raise DataError(f"{self.data.root} is empty: its files name no image")
        return annotations

    @cached_property
    def _finder(self) -> ImageFinder:
        return ImageFinder(self._annotations.folders, self.data.tree)

    @cached_property
    def _files(self) -> list[ImagePath | None]:
        """The file of each image."""
        names = [image.name for image in self._annotations.images]
        found = iter(self._finder.find([name for name in names if isinstance(name, str)]))
        return [next(found) if isinstance(name, str) else name for name in names]

    @cached_property
    def _markers(self) -> Markers:
        return Markers.of(text for image in self._annotations.images for text in image.captions)

    def split(self, name: str) -> Split:
        """Return a split, or several joined with "+".

        In a data set without splits, `val` is a share of the photos that is chosen by a hash of
        their names, `train` is all others, and any other name is all photos.

        Raises:
            DataError: Something is missing, malformed or empty, or no image is on disk; one
                sentence that names the file and, where it has lines, the line.
        """
        chosen = self._indices(name)
        ids: dict[int | str, NamedImage] = {}
        for image in (self._annotations.images[index] for index in chosen):
            other = ids.setdefault(image.image_id, image)
            if other.name != image.name:
                raise DataError(
                    f"{self.data.root}: the image id {image.image_id} is that of {other.name} and "
                    f"of {image.name}; number the images apart, or take one split at a time"
                )
        return self._split(chosen)

    def everything(self) -> Split:
        """Return all images of all splits."""
        return self._split(range(len(self._annotations.images)))

    def captions(self, name: str) -> list[str]:
        """Return all captions of a split, also of images that are not on disk."""
        images = self._annotations.images
        return [text for index in self._indices(name) for text in images[index].captions]

    def references(self, name: str) -> list[CaptionedImage]:
        """Return the captioned images of a split, whether they are on disk or not."""
        return [image for image in self._with_words(self._indices(name))[0] if image.captions]

    @property
    def has_splits(self) -> bool:
        return bool(self.split_names)

    @cached_property
    def split_names(self) -> list[str]:
        """The splits, each once: train and training are one."""
        found: dict[str, str] = {}
        for image in self._annotations.images:
            found.setdefault(split_name(image.split), image.split)
        return [name for name in found.values() if name]

    def description(self) -> str:
        """Return in one line what was recognised and read."""
        on_disk = sum(path is not None for path in self._files)
        places = [place for place, _ in self._finder.elsewhere.most_common(3)]
        found = f" in {' and '.join(places)}" if places else ""
        names = ", ".join(self.split_names)
        splits = f"splits {names}" if names else "no splits"
        if self.val_share and (not names or (names == "train" and self.divides_train)):
            share = f"{self.val_share:.0%}"
            splits += f" ({share} are held out for validation, by a hash of their names)"
        return f"{self.data.root}: {self.title}, {on_disk:,} photos{found}, {splits}"

    def _split(self, chosen: Sequence[int]) -> Split:
        named, wordless = self._with_words(chosen)
        present = [i for i, at in zip(named, chosen, strict=True) if self._files[at] is not None]
        if not present:
            raise DataError(self._none_on_disk([self._annotations.images[at] for at in chosen]))
        return Split(
            images=[image for image in present if image.captions],
            missing=[i.path for i, at in zip(named, chosen, strict=True) if not self._files[at]],
            uncaptioned=[image for image in present if not image.captions],
            wordless=wordless,
            problems=self._annotations.problems,
            markers=None if self.data.strip_markers else self._markers,
        )

    def _with_words(
        self, indices: Sequence[int]
    ) -> tuple[list[CaptionedImage], list[tuple[ImagePath, str]]]:
        images = self._annotations.images
        return with_words(
            CaptionedImage(
                self._files[index] or self._finder.expected(str(images[index].name)),
                tuple(map(self._caption, images[index].captions)),
                images[index].image_id,
            )
            for index in indices
        )

    def _caption(self, text: str) -> str:
        """Return a caption with single spaces, and without markers if they are to be removed."""
        text = " ".join(text.split())
        return self._markers.stripped(text) if self.data.strip_markers else text

    def _indices(self, name: str) -> Sequence[int]:
        """Return which images are of a split, or of several joined with "+"."""
        wanted = {split_name(part) for part in name.split("+")}
        if "" in wanted:
            raise DataError(
                f'{name!r} is no split name; give one such as "train", or several joined with "+"'
            )
        available = set(map(split_name, self.split_names))
        divided = available == {"train"} and (self.divides_train or wanted == {"val"})
        if not available or divided:
            return self._without_splits(wanted)
        chosen = {self._available(part) for part in wanted}
        images = self._annotations.images
        return [i for i, image in enumerate(images) if split_name(image.split) in chosen]

    def _available(self, wanted: str) -> str:
        """Return the name of a split that is there; COCO's year may be left out."""
        available = list(map(split_name, self.split_names))
        if wanted in available:
            return wanted
        of_years = [name for name in available if re.sub(r"\d{4}$", "", name) == wanted]
        if len(of_years) == 1:
            return of_years[0]
        raise DataError(
            f"{self.data.root} has no split {wanted!r}; the splits there are: "
            + ", ".join(sorted(self.split_names))
            + "; choose with --split (data.train_split and data.val_split in a recipe)"
        )

    def _without_splits(self, wanted: set[str]) -> Sequence[int]:
        """Return the images of `train`, of `val`, or all, in a data set that has no splits."""
        names = [str(image.name) for image in self._annotations.images]
        everything = range(len(names))
        if not self.val_share or wanted not in ({"train"}, {"val"}):
            return everything
        held_out = held_out_for_validation(names, self.val_share)
        if len(held_out) >= len(names):  # too few to divide
            return everything
        return [index for index in everything if (index in held_out) == (wanted == {"val"})]

    def _none_on_disk(self, images: Sequence[NamedImage]) -> str:
        """Say that no image was found, where it was searched, and what lies there instead."""
        names = [str(image.name) for image in images]
        first, folder = names[0], self.data.folder
        if all(map(is_url, names)):
            return (
                f"{self.data.root} names addresses such as {first}, and none of the {len(names)} "
                f"photos is below {folder}; download them first, for instance with img2dataset"
            )
        there = self.data.tree.images
        found = (
            f"the {len(there)} photos below {folder} have other names, such as "
            f"{self.data.relative(there[0])}"
            if there
            else f"there are no photos below {folder}"
        )
        return (
            f"none of the {len(names)} images that {self.data.root} names is on disk, the first is "
            f"expected at {self._finder.expected(first)}; {found}. Put the photos there, or "
            "correct the path or the names"
        )


def read_split(*, split: str, val_share: float = VAL_SHARE, **data: Any) -> Split:
    """Read one split, or several joined with "+" such as "train+restval", of a data set.

    Args:
        split: As in `CaptionedData.split`.
        val_share: Share of the photos that is held out in a data set without splits.
        data: Arguments of `DataFiles`.

    Raises:
        DataError: The data set cannot be read.
    """
    return CaptionedData(DataFiles(**data), val_share=val_share).split(split)


def _recognised(data: DataFiles) -> tuple[str, str]:
    """Return the layout's name and what lies there in words.

    Raises:
        DataError: There is no such place, nothing is recognised, or several layouts are.
    """
    if data.format not in DATA_FORMATS and data.format != AUTO:
        raise DataError(
            f"unknown data format {data.format!r}; use {AUTO} or one of {', '.join(DATA_FORMATS)}"
        )
    if is_url(str(data.root)):
        raise DataError(f"{data.root}: training reads folders of this machine; copy it to one")
    if not os.path.exists(data.root):  # Path.exists raises for some names
        raise DataError(f"there is no file or folder {data.root}; correct the path of the data")
    if data.format != AUTO:
        title = DATA_FORMATS[data.format]().recognise(data)
        if title is None:
            raise DataError(_not_recognised(data, f"is no data set of format {data.format}"))
        return data.format, title
    titles = {name: DATA_FORMATS[name]().recognise(data) for name in DATA_FORMATS}
    found = {name: title for name, title in titles.items() if title}
    # A table or sidecars may accompany a data set of a certain name.
    certain = {name: title for name, title in found.items() if name not in ("table", "sidecars")}
    found = certain or found
    if not found:
        raise DataError(_not_recognised(data, "holds no data set whose layout is recognised"))
    if len(found) > 1:
        raise DataError(
            f"{data.root} holds several data sets: {'; '.join(found.values())}. Choose one with "
            f"--format {' or --format '.join(found)} (data.format in a recipe)"
        )
    return next(iter(found.items()))


def _not_recognised(data: DataFiles, reason: str) -> str:
    """Say that no layout fits, what lies there, and where the layouts are listed."""
    from captioner.data.formats.table import headings

    lines = [f"{data.root} {reason}"]
    if not os.path.isfile(data.root):
        others = [data.relative(path) for path in data.tree.others]
        lines.append(
            f"it has {len(data.tree.images)} photos and these other files: {listed(others, 5)}"
            if others
            else f"it has {len(data.tree.images)} photos and no other files"
        )
    hint = next((h for f in data.candidates("*") if (h := _HINTS.get(f.suffix.lower()))), None)
    if hint:
        lines.append(hint)
    for path, columns in headings(data):
        lines.append(
            f"{data.relative(path)} has the columns {listed(columns, 8)} (choose two with "
            "--image-column and --caption-column, or write the heading image,caption above)"
        )
    return "; ".join(lines) + f". The layouts are listed in {LAYOUTS_PAGE}"
