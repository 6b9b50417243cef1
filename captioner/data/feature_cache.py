"""Output of the encoder's frozen stages, kept on disk."""

from __future__ import annotations

import hashlib
import json
import math
import os
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from captioner.data.loading import load_items
from captioner.data.tars import ImagePath, TarMember, file_facts
from captioner.data.transforms import ImageTransform, open_image
from captioner.errors import DataError, ImageError
from captioner.files import locked, remove_temporary_files, replacing

CHUNK = 8  # images through the encoder at once: larger batches fall out of a CPU's cache
FEATURES, CHECKSUMS, PROGRESS = "features.npy", "checksums.npy", "progress.json"
SAVE_EVERY = 256  # items between two notes of the progress
MAX_STRETCH = 0.1  # a crop's sides are stretched by up to exp(0.1), one up and one down


class FeatureCache:
    """float16 array [images, views, C, h, w], memory-mapped.

    The name of its folder is a hash of everything that the values depend on: the encoder's weights,
    the preprocessing and augmentation, the seed, and each image's path, size and time of change.
    So a stale cache is never read: other images have another folder. View 0 is the plain image, the
    others are augmented.

    Args:
        unreadable: Images that could not be read when the cache was made, each with the reason.
    """

    def __init__(self, folder: Path, unreadable: dict[int, str]) -> None:
        self.folder = folder
        self.features: np.ndarray = np.load(folder / FEATURES, mmap_mode="r")
        self.unreadable = unreadable

    def __reduce__(self) -> tuple[type[FeatureCache], tuple[Path, dict[int, str]]]:
        """Pickle the place, so that a worker process maps the file instead of receiving it."""
        return FeatureCache, (self.folder, self.unreadable)

    @property
    def views(self) -> int:
        return self.features.shape[1]

    def read(self, image: int, view: int) -> Tensor:
        """Return frozen features, float16 [C, h, w].

        Raises:
            ImageError: The image could not be read when the cache was made.
        """
        if image in self.unreadable:
            raise ImageError(self.unreadable[image])
        return torch.from_numpy(self.features[image, view].copy())


@dataclass(frozen=True)
class FeatureCrop:
    """A random crop of a feature map, resized to the map's size, and mirrored at random.

    The features of a mirrored or cropped image are only approximately the mirrored or cropped
    features, so this is no substitute for views of the image, but it costs nothing and has no end
    of variants.

    Args:
        min_area: Smallest share of the map that is kept.
    """

    min_area: float
    flip: float

    def __call__(self, features: Tensor, generator: np.random.Generator) -> Tensor:
        """Crop features [C, h, w] to float32 [C, h, w], bilinear between the cells."""
        features = features.float()
        if generator.random() < self.flip:
            features = features.flip(-1)
        side = math.sqrt(generator.uniform(self.min_area, 1.0))
        limit = min(MAX_STRETCH, -math.log(side))  # or a side would exceed the map
        stretch = math.exp(generator.uniform(-limit, limit))
        height, width = side * stretch, side / stretch
        # centre of the crop, in halves of the map from its centre
        y, x = generator.uniform(height - 1, 1 - height), generator.uniform(width - 1, 1 - width)
        crop = torch.tensor([[[width, 0.0, x], [0.0, height, y]]])
        places = F.affine_grid(crop, [1, 1, *features.shape[1:]], align_corners=False)
        cropped = F.grid_sample(
            features.unsqueeze(0), places, padding_mode="border", align_corners=False
        )
        return cropped[0]


class _Views(Dataset[tuple[Tensor, list[str]]]):
    """All views of all images as network inputs; an item is a range of them.

    Each view [B, 3, H, W] comes with the reason if its image is unreadable.
    """

    def __init__(
        self, paths: Sequence[ImagePath], transform: ImageTransform, views: int, seed: int
    ) -> None:
        self.paths, self.transform, self.views, self.seed = paths, transform, views, seed

    def __len__(self) -> int:
        return len(self.paths) * self.views

    def __getitem__(self, indices: range) -> tuple[Tensor, list[str]]:
        views, reasons = zip(*map(self._read, indices), strict=True)
        return torch.stack(views), list(reasons)

    def _read(self, index: int) -> tuple[Tensor, str]:
        """Return item `index` as the network's input [3, H, W], and "" or why it is unreadable."""
        image, view = divmod(index, self.views)
        generator = np.random.default_rng((self.seed, image, view)) if view else None
        try:
            return self.transform(open_image(self.paths[image]), generator)[0], ""
        except ImageError as error:
            empty = torch.zeros(3, self.transform.height_px, self.transform.width_px)
            return empty, str(error)

    def key(self, fingerprint: str) -> str:
        """Return a hash of everything that the cached values depend on."""
        settings = {
            name: str(value)
            for name, value in vars(self.transform).items()
            if not name.startswith("_")
        }
        seed = self.seed
        if self.views == 1:  # nothing random in it
            settings["augmentation"], seed = "None", 0
        digest = hashlib.sha256(json.dumps([fingerprint, settings, self.views, seed]).encode())
        for path in self.paths:
            try:
                size, changed = file_facts(path)
            except OSError:  # vanished: unreadable, as `open_image` will report
                size = changed = -1
            name = os.fsencode(str(path) if isinstance(path, TarMember) else os.path.realpath(path))
            digest.update(name + f"\0{size}\0{changed}\n".encode())
        return digest.hexdigest()


def build_feature_cache(
    root: Path,
    paths: Sequence[ImagePath],
    transform: ImageTransform,
    encode: Callable[[Tensor], Tensor],
    *,
    fingerprint: str,
    views: int,
    seed: int,
    workers: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> FeatureCache:
    """Open the cache of these images, making or finishing it first where needed.

    An interrupted build goes on where it stopped. What an earlier process has made is compared with
    its checksums, and images that it could not read are tried again.

    Args:
        encode: Images [B, 3, H, W] to frozen features [B, C, h, w].
        fingerprint: Hash of the weights that `encode` uses.
        views: Views of each image; the first is plain.
        progress: Called with the number of views done, and of all.

    Raises:
        DataError: The disk cannot hold it, or what it holds of it is damaged.
    """
    items = _Views(paths, transform, views, seed)
    key = items.key(fingerprint)
    folder = root / key[:20]
    build = _Build(folder, key, items, encode)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        build.read_progress()
        complete = build.done == len(build.items)
        if complete:
            remove_temporary_files(folder)
            build.verify()  # without a lock: it takes long, and other runs only read too
        if not complete or build.unreadable:
            # Two runs may want the same images: the second waits, and finds what the first made.
            with locked(folder / ".lock", wait=True):
                remove_temporary_files(folder, older_than_s=0)
                build.read_progress()
                earlier = list(build.unreadable)
                if not complete:
                    build.verify()
                    build.fill(workers, progress)
                build.read_again(earlier)
    except OSError as error:
        raise DataError(
            f"{folder}: the feature cache cannot be written ({error.strerror or error}); "
            "free some disk, name another folder with data.cache, or leave it out"
        ) from None
    return FeatureCache(folder, build.unreadable)


class _Build:
    """A cache that is being made; its first `done` items are finished."""

    def __init__(
        self, folder: Path, key: str, items: _Views, encode: Callable[[Tensor], Tensor]
    ) -> None:
        self.folder, self.key, self.items, self.encode = folder, key, items, encode
        self.done = 0
        self.unreadable: dict[int, str] = {}

    def read_progress(self) -> None:
        """Find out how many items an earlier build has finished, and its unreadable images."""
        items = self.items
        self.done, self.unreadable = 0, {}
        if not (self.folder / PROGRESS).exists():
            return
        try:
            saved = json.loads((self.folder / PROGRESS).read_text(encoding="utf-8"))
            done, reasons = saved["done"], saved["unreadable"]
            unreadable = {int(image): reason for image, reason in reasons.items()}
            if type(done) is not int or not 0 <= done <= len(items):
                raise ValueError(f"{PROGRESS} counts {done!r} of {len(items)} entries")
            if not all(isinstance(reason, str) for reason in unreadable.values()):
                raise ValueError(f"{PROGRESS} has reasons that are no texts")
            # "r+" would fill up a file that was cut short
            features = open_memmap(self.folder / FEATURES, mode="r")
            expected = (len(items.paths), items.views)
            if features.dtype != np.float16 or features.shape[:2] != expected:
                raise ValueError(f"{FEATURES} holds {features.dtype} {features.shape}")
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
            FileNotFoundError,
        ) as error:
            raise self._damaged(str(error)) from None
        self.done, self.unreadable = done, unreadable

    def verify(self) -> None:
        """Compare the finished items with their checksums.

        A cache of an earlier version has no checksums; they are computed from what it holds.
        """
        if not self.done:
            return
        features = open_memmap(self.folder / FEATURES, mode="r")
        items = features.reshape(-1, *features.shape[2:])
        with ThreadPoolExecutor(max_workers=4) as pool:  # crc32 releases the interpreter's lock
            checksums = pool.map(_checksum, items[: self.done])
            found = np.fromiter(checksums, dtype=np.uint32, count=self.done)
        if not (self.folder / CHECKSUMS).exists():
            with replacing(self.folder / CHECKSUMS, durable=True) as file:
                np.save(file, np.resize(found, len(items)))
            return
        try:
            expected = np.load(self.folder / CHECKSUMS, mmap_mode="r")[: self.done]
            wrong = np.count_nonzero(found != expected)
        except ValueError as error:
            raise self._damaged(str(error)) from None
        if wrong:
            raise self._damaged(f"{wrong} of its {self.done} entries are not what was written")

    def fill(self, workers: int, progress: Callable[[int, int], None]) -> None:
        """Compute the items that are missing."""
        count, views = len(self.items), self.items.views
        if self.done == count:
            return
        if not self.done:
            shape = self.encode(self.items[range(1)][0]).shape[1:]
            _reserve(self.folder / FEATURES, (len(self.items.paths), views, *shape), np.float16)
            _reserve(self.folder / CHECKSUMS, (count,), np.uint32)
        chunks = [
            range(first, min(first + CHUNK, count)) for first in range(self.done, count, CHUNK)
        ]
        self._open()
        for images, reasons in load_items(self.items, chunks, workers=workers):
            self._write(self.done, images)
            for index, reason in enumerate(reasons, start=self.done):
                if reason:
                    self.unreadable[index // views] = reason
            self.done += len(images)
            if self.done % SAVE_EVERY < CHUNK or self.done == count:
                self._save()
                progress(self.done, count)

    def read_again(self, images: Sequence[int]) -> None:
        """Compute images that an earlier build could not read.

        What they lacked may have come since: a library for their format, a permission, memory.
        """
        views, found = self.items.views, []
        if images:
            self._open()
        for image in images:
            places = range(image * views, (image + 1) * views)
            if not self.items[places[:1]][1][0]:
                self._write(places.start, self.items[places][0])
                found.append(image)
        if found:
            for image in found:
                del self.unreadable[image]
            self._save()

    def _open(self) -> None:
        """Map the features, as [items, C, h, w], and the checksums for writing."""
        features: Any = open_memmap(self.folder / FEATURES, mode="r+")
        self._features = features.reshape(-1, *features.shape[2:])
        self._checksums: Any = open_memmap(self.folder / CHECKSUMS, mode="r+")

    def _write(self, first: int, images: Tensor) -> None:
        """Write the features of network inputs [B, 3, H, W], which are items from `first` on."""
        values = self.encode(images).cpu().numpy().astype(np.float16)
        self._features[first : first + len(values)] = values
        self._checksums[first : first + len(values)] = [_checksum(value) for value in values]

    def _save(self) -> None:
        """Note the progress, once the items are on the disk."""
        self._features.flush()
        self._checksums.flush()
        with replacing(self.folder / PROGRESS, durable=True) as file:
            content = {"done": self.done, "unreadable": self.unreadable, "key": self.key}
            file.write(json.dumps(content).encode())

    def _damaged(self, reason: str) -> DataError:
        return DataError(
            f"{self.folder}: the feature cache is damaged ({reason}); delete this folder, and it "
            "will be made again"
        )


def _checksum(features: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(features).data.cast("B"))


def _reserve(path: Path, shape: tuple[int, ...], dtype: Any) -> None:
    """Make an array file and ask the disk for all of its space.

    A memory map of a file with holes ends the whole process (SIGBUS) when the disk fills up later.
    """
    open_memmap(path, mode="w+", dtype=dtype, shape=shape).flush()
    if not hasattr(os, "posix_fallocate"):  # macOS, Windows
        return
    try:
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except OSError:
        path.unlink()  # so that it does not keep what is left of the disk
        raise
