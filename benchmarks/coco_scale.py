"""Data of COCO's full size, made up: times and memory of everything before and between the steps.

Writes 118,287 tiny photos and 591,753 captions in COCO's layout (about 700 MB on a file system with
blocks of 4 KiB), then reads, encodes, shuffles and interrupts an epoch as training does, and fills
a feature cache (727 MB) in two goes.

    python -m benchmarks.coco_scale FOLDER [--keep]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional

from benchmarks.timing import peak_memory_mib
from captioner.config.settings import DataConfig, SourceConfig
from captioner.data.dataset import CaptionBatches, CaptionDataset, encode_captions
from captioner.data.feature_cache import CHUNK, build_feature_cache
from captioner.data.images import open_image
from captioner.data.sources import captions_digest, read_sources
from captioner.data.transforms import ImageTransform
from captioner.data.vocabulary import Tokenizer, Vocabulary
from captioner.data.workers import load_items

PHOTOS, CAPTIONS, WORDS, VALIDATION = 118_287, 591_753, 27_000, 5_000


def make(folder: Path) -> None:
    """Write the data set: words of Zipf's frequencies, captions of 8 to 14 words."""
    generator = np.random.default_rng(1)
    photos = []
    for colour in generator.integers(0, 255, (64, 3)).tolist():
        file = io.BytesIO()
        Image.new("RGB", (16, 12), tuple(colour)).save(file, "JPEG")
        photos.append(file.getvalue())
    names = np.array([f"word{number}" for number in range(WORDS)])
    shares = 1.0 / np.arange(1, WORDS + 1)
    (folder / "annotations").mkdir(parents=True)
    for split, count, captions in (
        ("train2017", PHOTOS, CAPTIONS),
        ("val2017", VALIDATION, 5 * VALIDATION),
    ):
        (folder / split).mkdir()
        for number in range(count):
            (folder / split / f"{number:012}.jpg").write_bytes(photos[number % len(photos)])
        lengths = generator.integers(8, 15, captions)
        words = generator.choice(names, int(lengths.sum()), p=shares / shares.sum())
        texts = [" ".join(part) for part in np.split(words, lengths.cumsum()[:-1])]
        (folder / "annotations" / f"captions_{split}.json").write_text(
            json.dumps(
                {
                    "images": [{"id": n, "file_name": f"{n:012}.jpg"} for n in range(count)],
                    "annotations": [
                        {"id": n, "image_id": n % count, "caption": text}
                        for n, text in enumerate(texts)
                    ],
                }
            )
        )


def measure(folder: Path) -> None:
    """Print for each stage the seconds of a core, and the largest memory so far."""
    began = time.process_time()

    def done(stage: str) -> None:
        nonlocal began
        memory = peak_memory_mib(torch.device("cpu"))
        print(f"{stage:58} {time.process_time() - began:7.2f} CPU s {memory:7.0f} MiB", flush=True)
        began = time.process_time()

    source = SourceConfig(
        name="coco",
        format="coco",
        root=str(folder),
        train_split="train2017",
        val_split="val2017",
    )
    images = read_sources(DataConfig(sources=(source,)))
    assert len(images.training) == PHOTOS
    texts = [text for image in images.training for text in image.captions]
    assert len(texts) == CAPTIONS
    done("index: annotations and folders")
    captions_digest(images.training)
    done("digest of the captions")
    vocabulary = Vocabulary.build(texts, Tokenizer(), min_count=5)
    done(f"vocabulary of {len(vocabulary)} words")
    captions = encode_captions(images.training, vocabulary, max_words=25)
    done("captions as indices")
    batches = CaptionBatches(captions, batch_size=160, by="photo", seed=1)
    order = batches.epoch(0)
    assert sorted(np.concatenate(order).tolist()) == list(range(CAPTIONS))
    done(f"order of an epoch, {len(order)} batches, each caption once")
    for process in range(8):
        shares = [batches.share(batch, process, 8) for batch in order]
        assert process or sum(map(len, shares)) < CAPTIONS / 7
    done("shares of 8 processes")
    transform = ImageTransform(height_px=32, width_px=32)
    dataset = CaptionDataset(images.training, captions, transform, seed=1)
    items = [(0, entries) for entries in order[-200:]]
    loaded = [batch.image_numbers for batch in load_items(dataset, items)]
    done("the last 200 batches, as after an interruption")
    again = [batch.image_numbers for batch in load_items(dataset, items[100:])]
    assert all((a == b).all() for a, b in zip(loaded[100:], again, strict=True))
    done("the last 100 again, and the same")
    paths = [image.path for image in images.training]
    for chunks, stage in (
        (PHOTOS // 2 // CHUNK, "half of a feature cache, then interrupted"),
        (PHOTOS, "the other half of the cache"),
        (0, "the cache opened again, and verified"),
    ):
        with contextlib.suppress(Interrupted):
            cache = build_feature_cache(
                folder / "cache",
                paths,
                transform,
                pooled(chunks),
                fingerprint="pooled",
                views=1,
                seed=1,
                workers=0,
            )
        done(stage)
    for image in np.random.default_rng(2).integers(0, PHOTOS, 1000).tolist():
        pixels, _ = transform(open_image(paths[image]))
        assert torch.equal(cache.read(image, 0), pooled(1)(pixels[None])[0].half())
    done(f"1,000 drawn photos of its {cache.features.nbytes / 1e6:.0f} MB are right")


class Interrupted(Exception):
    """Ends the filling of a cache."""


def pooled(batches: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return an encoder without weights, [B, 192, 4, 4], that is interrupted after so many."""
    left = batches

    def encode(images: torch.Tensor) -> torch.Tensor:
        nonlocal left
        if not left:
            raise Interrupted
        left -= 1
        return functional.adaptive_avg_pool2d(images, 4).repeat(1, 64, 1, 1)

    return encode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the data is made, unless it is there")
    parser.add_argument("--keep", action="store_true", help="keep the data")
    arguments = parser.parse_args()
    if not arguments.folder.exists():
        began = time.perf_counter()
        make(arguments.folder)
        print(f"made in {time.perf_counter() - began:.0f} s")
    measure(arguments.folder)
    if not arguments.keep:
        shutil.rmtree(arguments.folder)


if __name__ == "__main__":
    main()
