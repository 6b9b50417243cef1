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
    key = _key(paths, transform, fingerprint=fingerprint, views=views, seed=seed)
    folder = root / key[:20]
    items = _Views(paths, transform, views, seed)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        done, unreadable = _read_progress(folder, items)
        earlier = list(unreadable)
        if done < len(items):
            # Two runs may want the same images: the second waits, and finds what the first made.
            with locked(folder / ".lock", wait=True):
                remove_temporary_files(folder, older_than_s=0)
                done, unreadable = _read_progress(folder, items)
                earlier = list(unreadable)
                _verify(folder, done)
                _fill(folder, key, items, encode, done, unreadable, workers, progress)
        else:
            remove_temporary_files(folder)
            _verify(folder, done)
        if earlier:
            with locked(folder / ".lock", wait=True):
                _read_again(folder, key, items, encode, earlier, unreadable)
    except OSError as error:
        raise DataError(
            f"{folder}: the feature cache cannot be written ({error.strerror or error}); "
            "free some disk, name another folder with data.cache, or leave it out"
        ) from None
    return FeatureCache(folder, unreadable)


def _fill(
    folder: Path,
    key: str,
    items: _Views,
    encode: Callable[[Tensor], Tensor],
    done: int,
    unreadable: dict[int, str],
    workers: int,
    progress: Callable[[int, int], None],
) -> None:
    """Compute the items from number `done` on; add to the unreadable images."""
    if done == len(items):
        return
    if not done:
        shape = encode(items[range(1)][0]).shape[1:]
        _reserve(folder / FEATURES, (len(items.paths), items.views, *shape), np.float16)
        _reserve(folder / CHECKSUMS, (len(items),), np.uint32)
    features = _open_items(folder, mode="r+")
    checksums: Any = np.lib.format.open_memmap(folder / CHECKSUMS, mode="r+")
    chunks = [
        range(first, min(first + CHUNK, len(items))) for first in range(done, len(items), CHUNK)
    ]
    for images, reasons in load_items(items, chunks, workers=workers):
        _write(features, checksums, done, encode(images))
        for offset, reason in enumerate(reasons):
            if reason:
                unreadable[(done + offset) // items.views] = reason
        done += len(images)
        if done % SAVE_EVERY < CHUNK or done == len(items):
            features.flush()
            checksums.flush()
            _save_progress(folder, key, done, unreadable)
            progress(done, len(items))


def _read_again(
    folder: Path,
    key: str,
    items: _Views,
    encode: Callable[[Tensor], Tensor],
    earlier: Sequence[int],
    unreadable: dict[int, str],
) -> None:
    """Compute images that an earlier build could not read, and take them out of `unreadable`.

    What they lacked may have come since: a library for their format, a permission, memory.
    """
    features = _open_items(folder, mode="r+")
    checksums: Any = np.lib.format.open_memmap(folder / CHECKSUMS, mode="r+")
    found = []
    for image in earlier:
        places = range(image * items.views, (image + 1) * items.views)
        if not items[places[:1]][1][0]:
            images, _ = items[places]
            _write(features, checksums, places.start, encode(images))
            found.append(image)
    if found:
        features.flush()
        checksums.flush()
        for image in found:
            del unreadable[image]
        _save_progress(folder, key, len(items), unreadable)


def _write(features: Any, checksums: Any, first: int, encoded: Tensor) -> None:
    """Write encoded items [B, C, h, w] and their checksums, from item `first` on."""
    values = encoded.cpu().numpy().astype(np.float16)
    features[first : first + len(values)] = values
    checksums[first : first + len(values)] = [_checksum(value) for value in values]


def _save_progress(folder: Path, key: str, done: int, unreadable: dict[int, str]) -> None:
    with replacing(folder / PROGRESS, durable=True) as file:
        content = {"done": done, "unreadable": unreadable, "key": key}
        file.write(json.dumps(content).encode())


def _open_items(folder: Path, *, mode: Any) -> Any:
    """Map the features as [items, C, h, w]."""
    features = np.lib.format.open_memmap(folder / FEATURES, mode=mode)
    return features.reshape(-1, *features.shape[2:])


def _checksum(features: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(features).data.cast("B"))


def _verify(folder: Path, done: int) -> None:
    """Compare the first `done` items with their checksums.

    A cache of an earlier version has no checksums; they are computed from what it holds.

    Raises:
        DataError: An item is not what was written.
    """
    if not done:
        return
    features = _open_items(folder, mode="r")
    with ThreadPoolExecutor(max_workers=4) as pool:  # crc32 releases the interpreter's lock
        found = np.fromiter(pool.map(_checksum, features[:done]), dtype=np.uint32, count=done)
    if not (folder / CHECKSUMS).exists():
        with replacing(folder / CHECKSUMS, durable=True) as file:
            np.lib.format.write_array(file, np.resize(found, len(features)))
        return
    try:
        expected = np.load(folder / CHECKSUMS, mmap_mode="r")[:done]
        wrong = np.flatnonzero(found != expected)
    except ValueError as error:
        raise _damaged(folder, str(error)) from None
    if len(wrong):
        raise _damaged(folder, f"{len(wrong)} of its {done} entries are not what was written")


def _damaged(folder: Path, reason: str) -> DataError:
    return DataError(
        f"{folder}: the feature cache is damaged ({reason}); delete this folder, and it will be "
        "made again"
    )


def _key(
    paths: Sequence[ImagePath],
    transform: ImageTransform,
    *,
    fingerprint: str,
    views: int,
    seed: int,
) -> str:
    """Return a hash of everything that the cached values depend on."""
    settings = {
        name: str(value) for name, value in vars(transform).items() if not name.startswith("_")
    }
    if views == 1:  # nothing random in it
        settings["augmentation"], seed = "None", 0
    digest = hashlib.sha256(json.dumps([fingerprint, settings, views, seed]).encode())
    for path in paths:
        try:
            size, changed = file_facts(path)
        except OSError:  # vanished: unreadable, as `open_image` will report
            size = changed = -1
        name = os.fsencode(str(path) if isinstance(path, TarMember) else os.path.realpath(path))
        digest.update(name + f"\0{size}\0{changed}\n".encode())
    return digest.hexdigest()


def _read_progress(folder: Path, items: _Views) -> tuple[int, dict[int, str]]:
    """Return how many items an earlier build has finished, and its unreadable images.

    Raises:
        DataError: The notes or the features are damaged.
    """
    if not (folder / PROGRESS).exists():
        return 0, {}
    try:
        saved = json.loads((folder / PROGRESS).read_text(encoding="utf-8"))
        done, reasons = saved["done"], saved["unreadable"]
        unreadable = {int(image): reason for image, reason in reasons.items()}
        if type(done) is not int or not 0 <= done <= len(items):
            raise ValueError(f"{PROGRESS} counts {done!r} of {len(items)} entries")
        if not all(isinstance(reason, str) for reason in unreadable.values()):
            raise ValueError(f"{PROGRESS} has reasons that are no texts")
        # "r+" would fill up a file that was cut short
        features = np.lib.format.open_memmap(folder / FEATURES, mode="r")
        if features.dtype != np.float16 or features.shape[:2] != (len(items.paths), items.views):
            raise ValueError(f"{FEATURES} holds {features.dtype} {features.shape}")
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        FileNotFoundError,
    ) as error:
        raise _damaged(folder, str(error)) from None
    return done, unreadable


def _reserve(path: Path, shape: tuple[int, ...], dtype: Any) -> None:
    """Make an array file and ask the disk for all of its space.

    A memory map of a file with holes ends the whole process (SIGBUS) when the disk fills up later.
    """
    np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape).flush()
    if not hasattr(os, "posix_fallocate"):  # macOS, Windows
        return
    try:
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except OSError:
        path.unlink()  # so that it does not keep what is left of the disk
        raise
