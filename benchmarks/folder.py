"""Captioning a folder, and loading photos, against the encoder and Pillow alone."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.timing import Table, has_bfloat16, in_turns, peak_memory_mib
from captioner import Captioner
from captioner.data.images import open_image
from captioner.runtime.parallel import parallel_map

BATCH = 16  # as caption.py takes them
WIDTH, HEIGHT = 640, 480
ALONE, CAPTIONING = "encoder alone", "captioning, beam 5"


def run(*, device: torch.device, photos: int, rounds: int) -> Table:
    """Photos a second of the whole way from JPEG to caption, and of its parts alone."""
    captioner = Captioner.from_pretrained(device=str(device))
    in_torch = Captioner.from_pretrained(device=str(device), engine="torch")
    own = captioner.config.preprocess
    with tempfile.TemporaryDirectory() as folder:
        paths = _draw(Path(folder), photos)
        inputs = [captioner.transform.array(open_image(path))[0] for path in paths]

        def encode(by: Captioner) -> None:
            for first in range(0, photos, BATCH):
                by.engine.encode(inputs[first : first + BATCH])

        def decode() -> None:
            for path in paths:
                with Image.open(path) as image:
                    image.convert("RGB").resize((own.width_px, own.height_px), Image.BICUBIC)

        def load() -> None:
            for path in paths:
                captioner.transform(open_image(path))

        def caption(by: Captioner) -> None:
            batches = (
                [open_image(path) for path in paths[first : first + BATCH]]
                for first in range(0, photos, BATCH)
            )
            for _ in parallel_map(by.caption_batch, batches, by.device):
                pass

        calls = {
            ALONE: partial(encode, captioner),
            "Pillow's decode and resize alone": decode,
            "loading": load,
            CAPTIONING: partial(caption, captioner),
            f"{CAPTIONING}, in PyTorch": partial(caption, in_torch),
        }
        if has_bfloat16(device):
            rough = Captioner.from_pretrained(device=str(device), precision="bfloat16")
            calls[f"{ALONE}, bfloat16"] = partial(encode, rough)
            calls[f"{CAPTIONING}, bfloat16"] = partial(caption, rough)
        found = in_turns(calls, device=device, rounds=rounds)
    limits = {
        "loading": "Pillow's decode and resize alone",
        CAPTIONING: ALONE,
        f"{CAPTIONING}, bfloat16": f"{ALONE}, bfloat16",
    }
    rows = [
        {
            "work": name,
            "photos a second": photos / timing.median_s,
            "least s": timing.least_s,
            "most s": timing.most_s,
            "share of the limit": found[limits[name]].median_s / timing.median_s
            if name in limits
            else 1.0,
            "share of the float32 encoder alone": found[ALONE].median_s / timing.median_s
            if name.startswith(CAPTIONING)
            else None,
        }
        for name, timing in found.items()
    ]
    title = (
        f"{photos} JPEGs of {WIDTH} x {HEIGHT}, bundled model; peak memory "
        f"{peak_memory_mib(device):.0f} MiB"
    )
    return Table(title, rows)


def _draw(folder: Path, photos: int) -> list[Path]:
    """Photos of smooth noise, which as JPEG are about as large as real ones."""
    generator = np.random.default_rng(0)
    paths = []
    for number in range(photos):
        coarse = generator.integers(0, 256, (60, 80, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.BICUBIC)
        noisy = np.asarray(image, np.int16) + generator.integers(-12, 13, (HEIGHT, WIDTH, 1))
        paths.append(folder / f"{number:05d}.jpg")
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(paths[-1], quality=90)
    return paths
