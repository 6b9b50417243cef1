"""What a task costs as its sizes grow, one at a time from the bundled model's own."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.timing import Table, in_turns, peak_memory_mib
from captioner import Captioner
from captioner.config import AttentionConfig, DecoderConfig
from captioner.config.settings import LossConfig
from captioner.data.dataset import CaptionBatches, CaptionDataset, encode_captions
from captioner.data.layouts import read_split
from captioner.data.transforms import ImageTransform
from captioner.data.vocabulary import Vocabulary
from captioner.generation import SearchOptions, search
from captioner.generation.beam_search import END
from captioner.models.attention.attention import AdditiveScore, Attention, GlobalWindow, SoftSelect
from captioner.models.decoders.lstm import LSTMDecoder
from captioner.runtime.parallel import parallel_map
from captioner.training.cross_entropy import caption_losses
from captioner.types import Grid

L, T, B, K, D, VOCABULARY = 64, 12, 64, 5, 384, 2500
CELLS = (49, 100, 196, 400, 784)
WORDS = (10, 20, 40)
CAPTIONS = (1, 4, 16, 64, 256)
BEAMS = (1, 2, 5, 10)
PHOTOS = (100, 1000, 10_000, 100_000)
CAPTIONED = (32, 128, 512)  # photos


def run(*, device: torch.device, rounds: int, quick: bool) -> Table:
    """Median seconds for each size, and how they grow: the exponent between a size and the next.

    1 is linear; below 1 a larger task is cheaper a piece.
    """
    with tempfile.TemporaryDirectory() as folder:
        sweeps = {
            "training step, L cells": {
                n: _step(n, T, B, device) for n in CELLS[: 3 if quick else None]
            },
            "training step, T words": {n: _step(L, n, B, device) for n in WORDS},
            "training step, B captions": {n: _step(L, T, n, device) for n in CAPTIONS},
            "search, K beams": {n: _search(n, B, device) for n in BEAMS},
            "search, B photos": {n: _search(K, n, device) for n in CAPTIONS},
            "reading a data set and an epoch's order, photos": {
                n: _data(Path(folder), n) for n in PHOTOS[: 2 if quick else None]
            },
            "captioning files, photos": _captioning(
                Path(folder), CAPTIONED[: 1 if quick else None], device
            ),
        }
        rows = []
        for name, calls in sweeps.items():
            found = in_turns(calls, device=device, rounds=rounds)
            earlier = [None, *found]
            for before, (size, timing) in zip(earlier, found.items(), strict=False):
                exponent: float | str = ""
                if before:
                    growth = timing.median_s / found[before].median_s
                    exponent = math.log(growth) / math.log(size / before)
                rows.append(
                    {
                        "work": name,
                        "size": size,
                        "s": timing.median_s,
                        "least": timing.least_s,
                        "most": timing.most_s,
                        "exponent": exponent,
                        "peak MiB so far": peak_memory_mib(device),
                    }
                )
    title = f"Growth, from L {L}, T {T}, B {B}, K {K}, D {D}, V {VOCABULARY}"
    return Table(title, rows)


def _decoder(device: torch.device) -> LSTMDecoder:
    torch.manual_seed(0)
    score = AdditiveScore(AttentionConfig(dim=256), query_dim=512, feature_dim=D)
    attention = Attention(
        score, GlobalWindow(AttentionConfig(), query_dim=512), SoftSelect(AttentionConfig())
    )
    config = DecoderConfig(embed_dim=D, gate="vector", tie_embeddings=True)
    decoder = LSTMDecoder(
        config, lambda _=None: attention, vocabulary_size=VOCABULARY, feature_dim=D
    )
    with torch.no_grad():
        decoder.vocabulary.bias[END] = -100.0  # no caption ends before its last word
    return decoder.to(device)


def _grid(photos: int, cells: int, device: torch.device) -> Grid:
    rows = max(n for n in range(1, math.isqrt(cells) + 1) if cells % n == 0)
    return Grid(torch.randn(photos, cells, D, device=device), rows, cells // rows)


def _step(cells: int, words: int, captions: int, device: torch.device) -> Callable[[], None]:
    decoder, grid = _decoder(device), _grid(captions, cells, device)
    tokens = torch.randint(4, VOCABULARY, (captions, words + 1), device=device)
    lengths = torch.full((captions,), words)

    def step() -> None:
        decoder.zero_grad()
        forced = decoder(decoder.prepare(grid), tokens[:, :-1], lengths)
        caption_losses(forced, tokens[:, 1:], lengths, LossConfig())["total"].backward()

    return step


def _search(beams: int, photos: int, device: torch.device) -> Callable[[], None]:
    decoder, grid = _decoder(device).eval(), _grid(photos, L, device)

    def find() -> None:
        search(decoder, grid, SearchOptions(beam_size=beams, max_words=T))

    return find


def _data(folder: Path, photos: int) -> Callable[[], None]:
    """A table of captions, five a photo, read and put in the order of an epoch."""
    table = folder / f"{photos}.csv"
    words = [f"word{n}" for n in range(200)]
    generator = np.random.default_rng(0)
    with table.open("w", encoding="utf-8") as file:
        file.write("image,caption\n")
        for photo in range(photos):
            (folder / f"{photo}.jpg").touch()
            for _ in range(5):
                chosen = " ".join(words[n] for n in generator.integers(0, 200, 10))
                file.write(f"{photo}.jpg,{chosen}\n")

    def read() -> None:
        split = read_split(format="table", root=str(table), split="train")
        vocabulary = Vocabulary.build(
            (caption for image in split.images for caption in image.captions), min_count=5
        )
        captions = encode_captions(split.images, vocabulary, max_words=20)
        CaptionDataset(split.images, captions, _blank, seed=0)
        batches = CaptionBatches(captions, batch_size=80, by="photo", seed=0)
        assert sum(len(batch) for batch in batches.epoch(0)) == 5 * photos

    return read


_blank = ImageTransform(height_px=8, width_px=8, mean=(0, 0, 0), std=(1, 1, 1))


def _captioning(
    folder: Path, sizes: tuple[int, ...], device: torch.device
) -> dict[int, Callable[[], None]]:
    captioner = Captioner.from_pretrained(device=str(device))
    path = folder / "photo.jpg"
    pixels = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((640, 480), Image.Resampling.BICUBIC).save(path)

    def caption(photos: int) -> None:
        batches = ([path] * min(16, photos - first) for first in range(0, photos, 16))
        for _ in parallel_map(captioner.caption_batch, batches, captioner.device):
            pass

    return {size: partial(caption, size) for size in sizes}
