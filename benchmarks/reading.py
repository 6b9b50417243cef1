"""What reading a training photo costs a core: decode, crop and resize, colours.

    python -m benchmarks.reading [--photos N] [--size PIXELS]

Prints milliseconds of processor time a photo for JPEGs of 640 x 480, as COCO's are, and the cores
that read as many photos a second as the GPU's step takes.
"""

from __future__ import annotations

import argparse
import io
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from captioner.data.images import open_image
from captioner.data.transforms import Augmentation, ImageTransform

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
    print(f"{GPU_PHOTOS_PER_S} photos a second need {GPU_PHOTOS_PER_S * total:.0f} cores")


def read(photos: int, size: int) -> dict[str, float]:
    """Return the seconds of processor time that each part of reading takes a photo."""
    content = io.BytesIO()
    with Image.open(PHOTO) as image:
        image.convert("RGB").resize((640, 480)).save(content, "JPEG", quality=92)
    augmentation = Augmentation(flip=0.5, min_area=0.5, colour=0.3)
    transform = ImageTransform(height_px=size, width_px=size, augmentation=augmentation)
    without = ImageTransform(
        height_px=size, width_px=size, augmentation=Augmentation(flip=0.5, min_area=0.5)
    )
    generator = np.random.default_rng(0)
    spent: Counter[str] = Counter()

    def timed(part: str, compute: Callable[..., Any], *arguments: Any) -> Any:
        start = time.process_time()
        result = compute(*arguments)
        spent[part] += time.process_time() - start
        return result

    for _ in range(photos):
        photo = timed("decode", open_image, content.getvalue())
        timed("crop and resize", without.levels, photo, generator)
        timed("all", transform.levels, photo, generator)
    parts = {
        "decode": spent["decode"],
        "crop and resize": spent["crop and resize"],
        "colours": spent["all"] - spent["crop and resize"],
    }
    return {part: seconds / photos for part, seconds in parts.items()}


if __name__ == "__main__":
    main()
