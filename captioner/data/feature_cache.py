"""Output of the encoder's frozen stages, kept on disk."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from captioner.data.images import open_image
from captioner.data.splits import ImagePath, TarMember
from captioner.data.transforms import ImageTransform
from captioner.data.workers import load_items
from captioner.errors import DataError, ImageError
from captioner.files import save_bytes
from captioner.log import progress_bar
from captioner.storage import locked

CHUNK = 8  # images through the encoder at once: larger batches fall out of a CPU's cache
FEATURES, DONE = "features.npy", "progress.json"
MAX_STRETCH = 0.1  # a crop's sides are stretched by up to exp(0.1), one up and one down


class FeatureCache:
    """float16 array [images, views, C, h, w], memory-mapped; view 0 is the image not augmented.

    The name of its folder is a hash of everything that the values depend on, so that a stale cache
    is never read.

    Attributes:
        unreadable: Images that could not be read when the cache was made, each with the reason.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.features: np.ndarray = np.load(folder / FEATURES, mmap_mode="r")
        self.views = self.features.shape[1]
        reasons = json.loads((folder / DONE).read_bytes())["unreadable"]
        self.unreadable = {int(image): str(reason) for image, reason in reasons.items()}

    def __reduce__(self) -> tuple[type[FeatureCache], tuple[Path]]:
        """Pickle the place, so that a worker process maps the file instead of receiving it."""
        return FeatureCache, (self.folder,)

    def read(self, image: int, view: int) -> Tensor:
        """Return frozen features, float16 [C, h, w]; an ImageError if the image has none."""
        if image in self.unreadable:
            raise ImageError(self.unreadable[image])
        return torch.from_numpy(self.features[image, view].copy())


def crop_features(
    features: Tensor, generator: np.random.Generator, *, min_area: float, flip: float
) -> Tensor:
    """Return a random crop of features [C, h, w], at random mirrored, as float32 [C, h, w].

    It only approximates the features of a cropped or mirrored image, but it costs nothing. At least
    `min_area` of the map is kept; values between the cells are bilinear.
    """
    features = features.float()
    if generator.random() < flip:
        features = features.flip(-1)
    side = math.sqrt(generator.uniform(min_area, 1.0))
    limit = min(MAX_STRETCH, abs(math.log(side)))  # or a side would exceed the map
    stretch = math.exp(generator.uniform(-limit, limit))
    height, width = side * stretch, side / stretch
    # centre of the crop, in halves of the map from its centre
    y, x = generator.uniform(height - 1, 1 - height), generator.uniform(width - 1, 1 - width)
    crop = torch.tensor([[[width, 0.0, x], [0.0, height, y]]])
    places = F.affine_grid(crop, [1, 1, *features.shape[1:]], align_corners=False)
    maps = features.unsqueeze(0)
    return F.grid_sample(maps, places, padding_mode="border", align_corners=False)[0]


@dataclass(eq=False)
class _Views(Dataset[tuple[Tensor, list[str]]]):
    """All views of all images; an item is a range of them, and the reasons of unreadable ones."""

    paths: Sequence[ImagePath]
    transform: ImageTransform
    views: int
    seed: int

    def __len__(self) -> int:
        return len(self.paths) * self.views

    def __getitem__(self, indices: range) -> tuple[Tensor, list[str]]:
        views = torch.zeros(len(indices), 3, self.transform.height_px, self.transform.width_px)
        reasons = [""] * len(indices)
        for row, index in enumerate(indices):
            image, view = divmod(index, self.views)
            generator = np.random.default_rng((self.seed, image, view)) if view else None
            try:
                views[row] = self.transform(open_image(self.paths[image]), generator)[0]
            except ImageError as error:
                reasons[row] = str(error)
        return views, reasons

    def key(self, fingerprint: str) -> str:
        """Return a hash of everything that the cached values depend on."""
        public = {k: v for k, v in vars(self.transform).items() if not k.startswith("_")}
        settings, seed = {name: str(value) for name, value in public.items()}, self.seed
        if self.views == 1:  # nothing random in it
            settings["augmentation"], seed = "None", 0
        digest = hashlib.sha256(json.dumps([fingerprint, settings, self.views, seed]).encode())
        for path in self.paths:
            if isinstance(path, TarMember):
                name, size, changed = str(path), path.size, path.changed
            else:
                name, size, changed = os.path.realpath(path), -1, -1
                with contextlib.suppress(OSError):  # vanished: `open_image` will report it
                    size, changed = path.stat().st_size, path.stat().st_mtime_ns
            digest.update(os.fsencode(name) + f"\0{size}\0{changed}\n".encode())
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
) -> FeatureCache:
    """Open the cache of these images, making it first where needed.

    Args:
        encode: Images [B, 3, H, W] to frozen features [B, C, h, w].
        fingerprint: Hash of the weights that `encode` uses.
        views: Views of each image; the first is plain.
    """
    items = _Views(paths, transform, views, seed)
    folder = root / items.key(fingerprint)[:20]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Two runs may want the same images: the second waits, and finds what the first made.
        with locked(folder / ".lock", wait=True):
            done = 0
            with contextlib.suppress(FileNotFoundError):  # earlier versions wrote down parts, too
                done = json.loads((folder / DONE).read_bytes())["done"]
            if done != len(items):
                _fill(folder, items, encode, workers)
    except OSError as error:
        raise DataError(
            f"{folder}: the feature cache cannot be written ({error.strerror or error}); "
            "free some disk, name another folder with data.cache, or leave it out"
        ) from None
    return FeatureCache(folder)


def _fill(folder: Path, items: _Views, encode: Callable[[Tensor], Tensor], workers: int) -> None:
    """Compute all items, and write down at the end which images cannot be read."""
    count = len(items)
    unreadable: dict[int, str] = {}
    shape = (len(items.paths), items.views, *encode(items[range(1)][0]).shape[1:])
    if shutil.disk_usage(folder).free < 2 * math.prod(shape):
        raise OSError(errno.ENOSPC, f"{2 * math.prod(shape) / 1e9:.1f} GB are needed")
    chunks = [range(first, min(first + CHUNK, count)) for first in range(0, count, CHUNK)]
    bar = progress_bar(desc="caching features", total=count, unit="photo")
    with bar, (folder / FEATURES).open("wb") as file:
        header = {"descr": "<f2", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        loaded = load_items(items, chunks, workers=workers)
        for chunk, (images, reasons) in zip(chunks, loaded, strict=True):
            file.write(encode(images).cpu().numpy().astype("<f2").tobytes())
            for index, reason in zip(chunk, reasons, strict=True):
                if reason:
                    unreadable[index // items.views] = reason
            bar.update(len(chunk))
    save_bytes(json.dumps({"done": count, "unreadable": unreadable}).encode(), folder / DONE)
