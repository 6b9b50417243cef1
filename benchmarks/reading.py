"""What reading a training photo costs a core: from its JPEG, or from `data.cache`.

    python -m benchmarks.reading [--photos N] [--size PIXELS]

Prints milliseconds of processor time a photo for JPEGs of 640 x 480, as COCO's are, and for the
cached output of the stages that `coco_soft` freezes; and the cores that read as many photos a
second as the GPU's step takes.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from captioner.config.recipes import read_recipe
from captioner.data.augmentation import Augmentation
from captioner.data.dataset import CaptionDataset, encode_captions
from captioner.data.feature_cache import DONE, FEATURES, FeatureCache, crop_features
from captioner.data.images import open_image
from captioner.data.splits import CaptionedImage
from captioner.data.transforms import ImageTransform
from captioner.data.vocabulary import Vocabulary
from captioner.models.build import build_encoder

PHOTO = Path(__file__).parents[1] / "docs/photos/kite.jpg"
GPU_PHOTOS_PER_S = 4360  # 256 photos in 0.059 s: coco_soft in large batches on an H200


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--photos", type=int, default=200)
    parser.add_argument("--size", type=int, default=256, metavar="PIXELS")
    arguments = parser.parse_args()
    costs = read(arguments.photos, arguments.size)
    for part, cost in costs.items():
        print(f"{part:<20}{cost * 1e3:6.2f} ms")
    total = sum(costs.values())
    print(f"{'together':<20}{total * 1e3:6.2f} ms, {1 / total:.0f} photos a second and core")
    print(f"{GPU_PHOTOS_PER_S} photos a second need {GPU_PHOTOS_PER_S * total:.1f} cores\n")
    torch.set_num_threads(1)
    for name, min_area in (("cached", 1.0), ("cached and cropped", 0.6)):
        cost, size = read_cached(arguments.photos, arguments.size, min_area)
        print(f"{name:<20}{cost * 1e3:6.2f} ms, {size / 1e3:.0f} kB a view")
        print(f"{GPU_PHOTOS_PER_S} photos a second need {GPU_PHOTOS_PER_S * cost:.1f} cores")


def read(photos: int, size: int) -> dict[str, float]:
    """Return the seconds of processor time that each part of reading takes a photo."""
    content = io.BytesIO()
    with Image.open(PHOTO) as image:
        image.convert("RGB").resize((640, 480)).save(content, "JPEG", quality=92)
    augmentation = Augmentation(flip=0.5, min_area=0.5)  # colours change on the device
    transform = ImageTransform(height_px=size, width_px=size, augmentation=augmentation)
    generator = np.random.default_rng(0)
    spent: Counter[str] = Counter()

    def timed(part: str, compute: Callable[..., Any], *arguments: Any) -> Any:
        start = time.process_time()
        result = compute(*arguments)
        spent[part] += time.process_time() - start
        return result

    for _ in range(photos):
        photo = timed("decode", open_image, content.getvalue())
        timed("crop and resize", transform.levels, photo, generator)
    return {part: seconds / photos for part, seconds in spent.items()}


def read_cached(photos: int, size: int, min_area: float) -> tuple[float, int]:
    """Return seconds of processor time a photo with five captions, and the bytes of a view."""
    config = read_recipe("coco_soft")
    with torch.no_grad():
        encoder = build_encoder(config.encoder, size_px=(size, size), pretrained=False)
        shape = encoder.frozen_features(torch.zeros(1, 3, size, size)).shape[1:]
    text = "a man in a red shirt stands on a street"
    images = [CaptionedImage(Path(f"{n}.jpg"), (text,) * 5, n) for n in range(photos)]
    vocabulary = Vocabulary.build([text], min_count=1)
    with tempfile.TemporaryDirectory() as name:
        features = np.random.default_rng(0).random((photos, 1, *shape), dtype=np.float32)
        np.save(Path(name, FEATURES), features.astype(np.float16))
        Path(name, DONE).write_text(json.dumps({"done": photos, "unreadable": {}}))
        crop = partial(crop_features, min_area=min_area, flip=0.5)
        dataset = CaptionDataset(
            images,
            encode_captions(images, vocabulary),
            ImageTransform(height_px=size, width_px=size),
            seed=0,
            cache=FeatureCache(Path(name)),
            cache_crop=crop if min_area < 1 else None,
        )
        start = time.process_time()
        for first in range(0, 5 * photos, 160):  # captions of a batch
            _ = dataset[0, range(first, min(first + 160, 5 * photos))]
        return (time.process_time() - start) / photos, 2 * int(np.prod(shape))


if __name__ == "__main__":
    main()
