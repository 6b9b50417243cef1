"""Output of the encoder's frozen stages, kept on disk."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from captioner.data.transforms import ImageTransform, open_image
from captioner.errors import DataError, ImageError
from captioner.files import locked, replacing

CHUNK = 8  # photos through the encoder at once: larger batches fall out of a CPU's cache
ARRAY, NOTES = "features.npy", "progress.json"  # in the cache's folder
SAVE_EVERY = 256  # items between two progress marks
MAX_STRETCH = 0.1  # of a side's logarithm: one grows by it and the other shrinks


class FeatureCache:
    """float16 array [photos, views, C, h, w], memory-mapped.

    Its folder's name is a hash of all that the values depend on: the encoder's weights, the
    preprocessing and augmentation, the seed, and each photo's path, size and time of change. So a
    stale cache is never read: it is simply another folder. View 0 is the plain photo, the others
    are augmented.
    """

    def __init__(self, folder: Path, unreadable: dict[int, str]) -> None:
        self.folder = folder
        self.features: np.ndarray = np.load(folder / ARRAY, mmap_mode="r")
        self.unreadable = unreadable

    def __reduce__(self) -> tuple[type[FeatureCache], tuple[Path, dict[int, str]]]:
        """A worker that is not forked maps the file again, instead of being sent all of it."""
        return FeatureCache, (self.folder, self.unreadable)

    @property
    def views(self) -> int:
        return self.features.shape[1]

    def read(self, photo: int, view: int) -> Tensor:
        """Frozen features float16 [C, h, w].

        Raises:
            ImageError: the photo could not be read when the cache was made.
        """
        if photo in self.unreadable:
            raise ImageError(self.unreadable[photo])
        return torch.from_numpy(self.features[photo, view].copy())


@dataclass(frozen=True)
class FeatureCrop:
    """A random crop of a map of features, resized to the whole, now and then mirrored.

    What a network makes of a mirrored or cropped photo is only about the mirrored or cropped map,
    so this is no substitute for views of the photo, but costs nothing and never ends.

    min_area: smallest share of the map that is kept. flip: probability of mirroring.
    """

    min_area: float
    flip: float

    def __call__(self, features: Tensor, generator: np.random.Generator) -> Tensor:
        """Features [C, h, w] to float32 [C, h, w], bilinear between the cells."""
        features = features.float()
        if generator.random() < self.flip:
            features = features.flip(-1)
        side = math.sqrt(generator.uniform(self.min_area, 1.0))
        limit = min(MAX_STRETCH, -math.log(side))  # or a side would leave the map
        stretch = math.exp(generator.uniform(-limit, limit))
        height, width = side * stretch, side / stretch
        # shares of half the map, from its centre
        y, x = generator.uniform(height - 1, 1 - height), generator.uniform(width - 1, 1 - width)
        crop = torch.tensor([[[width, 0.0, x], [0.0, height, y]]])
        places = F.affine_grid(crop, [1, 1, *features.shape[1:]], align_corners=False)
        return F.grid_sample(
            features.unsqueeze(0), places, padding_mode="border", align_corners=False
        )[0]


class _Views(Dataset[tuple[Tensor, str]]):
    def __init__(
        self, paths: Sequence[Path], transform: ImageTransform, views: int, seed: int
    ) -> None:
        self.paths, self.transform, self.views, self.seed = paths, transform, views, seed

    def __len__(self) -> int:
        return len(self.paths) * self.views

    def __getitem__(self, index: int) -> tuple[Tensor, str]:
        photo, view = divmod(index, self.views)
        generator = np.random.default_rng((self.seed, photo, view)) if view else None
        try:
            return self.transform(open_image(self.paths[photo]), generator)[0], ""
        except ImageError as error:
            empty = torch.zeros(3, self.transform.height_px, self.transform.width_px)
            return empty, str(error)


def build_feature_cache(
    root: Path,
    paths: Sequence[Path],
    transform: ImageTransform,
    encode: Callable[[Tensor], Tensor],
    *,
    fingerprint: str,
    views: int,
    seed: int,
    workers: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> FeatureCache:
    """Open the cache of these photos, making or finishing it first where needed.

    encode: photos [B, 3, H, W] to frozen features [B, C, h, w]; fingerprint: a hash of its
    weights. An interrupted build goes on where it stopped.

    Raises:
        DataError: the disk cannot hold it, or what it holds of it is damaged.
    """
    key = _key(paths, transform, fingerprint=fingerprint, views=views, seed=seed)
    folder = root / key[:20]
    items = _Views(paths, transform, views, seed)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        done, unreadable = _done_before(folder)
        if done < len(items):
            # Two runs may want the same photos: the second waits, and finds what the first made.
            with locked(folder / ".lock", wait=True):
                unreadable = _fill(folder, key, items, encode, workers, progress)
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
    workers: int,
    progress: Callable[[int, int], None],
) -> dict[int, str]:
    """Make what is missing; return the unreadable photos with the reasons."""
    array = folder / ARRAY
    done, unreadable = _done_before(folder)
    if not done:
        shape = encode(torch.stack([items[0][0]])).shape[1:]
        _reserve(array, (len(items.paths), items.views, *shape))
    features = np.lib.format.open_memmap(array, mode="r+" if done < len(items) else "r")
    flat = features.reshape(len(items), *features.shape[2:])
    loader = DataLoader(
        torch.utils.data.Subset(items, range(done, len(items))),
        batch_size=CHUNK,
        num_workers=workers,
        # its own, or a run that makes the cache would draw other numbers than one that finds it
        generator=torch.Generator(),
    )
    for photos, reasons in loader if done < len(items) else ():
        flat[done : done + len(photos)] = encode(photos).cpu().numpy().astype(np.float16)
        for offset, reason in enumerate(reasons):
            if reason:
                unreadable[(done + offset) // items.views] = reason
        done += len(photos)
        if done % SAVE_EVERY < CHUNK or done == len(items):
            features.flush()
            with replacing(folder / NOTES) as file:
                content = {"done": done, "unreadable": unreadable, "key": key}
                file.write(json.dumps(content).encode())
            progress(done, len(items))
    return unreadable


def _key(
    paths: Sequence[Path], transform: ImageTransform, *, fingerprint: str, views: int, seed: int
) -> str:
    settings = {
        name: str(value) for name, value in vars(transform).items() if not name.startswith("_")
    }
    if views == 1:  # nothing random in it
        settings["augmentation"], seed = "None", 0
    digest = hashlib.sha256(json.dumps([fingerprint, settings, views, seed]).encode())
    for path in paths:
        try:
            facts = path.stat()
            size, changed = facts.st_size, facts.st_mtime_ns
        except OSError:  # vanished: unreadable, as `open_image` will say
            size = changed = -1
        name = os.fsencode(os.path.realpath(path))
        digest.update(name + f"\0{size}\0{changed}\n".encode())
    return digest.hexdigest()


def _done_before(folder: Path) -> tuple[int, dict[int, str]]:
    """How many items an earlier build has finished, and its unreadable photos."""
    if not (folder / NOTES).exists():
        return 0, {}
    try:
        saved = json.loads((folder / NOTES).read_text())
        # "r+" would fill up a file that was cut short
        np.lib.format.open_memmap(folder / ARRAY, mode="r")
        return saved["done"], {int(k): v for k, v in saved["unreadable"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{folder}: the feature cache is damaged ({error}); delete this folder, and it "
            "will be made again"
        ) from None


def _reserve(array: Path, shape: tuple[int, ...]) -> None:
    """Make the file and ask the disk for all of its space.

    A memory map of a file with holes ends the whole process (SIGBUS) when the disk fills up later.
    """
    np.lib.format.open_memmap(array, mode="w+", dtype=np.float16, shape=shape).flush()
    if not hasattr(os, "posix_fallocate"):  # macOS, Windows
        return
    try:
        with array.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, array.stat().st_size)
    except OSError:
        array.unlink()  # so that it does not keep what is left of the disk
        raise
