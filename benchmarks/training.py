"""The whole training step, encoder, decoder and update, of coco_soft's network in large batches.

    python -m benchmarks.training [--photos 256] [--steps 30] [--ways off graphs inductor]

Photos of 288 pixels with five captions each are in memory, so loading takes no time. The GPU works
for a share of the seconds of a few profiled steps, in which it computes or copies.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from benchmarks.kernels import WORDS, build_step, made_up_batch
from benchmarks.timing import Table, peak_memory_mib
from captioner.config.recipes import read_recipe
from captioner.runtime.device import autocast

SIZE, CAPTIONS, VOCABULARY = 288, 5, 9490
PROFILED = 5  # steps


def build_call(select: str, way: str, photos: int, device: torch.device) -> Callable[[], object]:
    """Return a step of a decoder with `select` attention, as `train.compile: way` takes it."""
    config = read_recipe("coco_soft")
    config = replace(config, attention=replace(config.attention, select=select))
    captions = photos * CAPTIONS
    kind: Any = None if way == "off" else way
    options: dict[str, Any] = {"device": device, "autocast": autocast(device, "auto")}
    step = build_step(config, VOCABULARY, kind, captions=captions, **options)
    lengths = torch.randint(8, WORDS + 1, (captions,)).sort(descending=True)[0]
    lengths[0] = WORDS
    batch = made_up_batch(lengths, images=photos, size_px=SIZE, vocabulary=VOCABULARY)
    pixels = torch.randint(256, (photos, SIZE, SIZE, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    factors = torch.rand(photos, 3) + 0.5
    batch = replace(batch, inputs=pixels, colours=factors, mean_std=torch.full((2, 3), 0.5))
    if device.type == "cuda":
        batch = batch.pin_memory()
    return lambda: step([batch], learning_rate_factor=1.0)


def busy_share(step: Callable[[], object]) -> float:
    """Return the share of the time of some steps in which the GPU works."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(PROFILED):
            step()
        torch.cuda.synchronize()
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    spans = sorted(
        (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in events
        if event.device_type() == torch.autograd.DeviceType.CUDA
    )
    busy, end = 0, spans[0][0]
    for begin, stop in spans:
        busy += max(0, stop - max(begin, end))
        end = max(end, stop)
    return busy / (end - spans[0][0])


def run(*, photos: int, steps: int, ways: list[str], device: torch.device) -> Table:
    """Seconds of a step, photos a second, the share in which the GPU works, and memory."""
    torch.set_float32_matmul_precision("high")
    gpu = device.type == "cuda"
    rows = []
    for select in ("soft", "hard"):
        for way in ways:
            peak_memory_mib(device)
            step = build_call(select, way, photos, device)
            began = time.perf_counter()
            for _ in range(3):  # computed, recorded, replayed
                step()
            if gpu:
                torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(steps):
                step()
            if gpu:
                torch.cuda.synchronize()
            seconds = (time.perf_counter() - begun) / steps
            rows.append(
                {
                    "attention": select,
                    "train.compile": way,
                    "s a step": seconds,
                    "photos a second": photos / seconds,
                    "s of the first three steps": begun - began,
                    "share in which the GPU works": busy_share(step) if gpu else None,
                    "peak memory MiB": peak_memory_mib(device),
                }
            )
            print(rows[-1], flush=True)
            del step
            if gpu:
                torch.cuda.empty_cache()
    title = f"Training step, {photos} photos of {SIZE} px with {CAPTIONS} captions each"
    return Table(title, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--photos", type=int, default=256)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--ways", nargs="+", default=["off", "graphs", "inductor"])
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    table = run(photos=arguments.photos, steps=arguments.steps, ways=arguments.ways, device=device)
    print(f"\n{table.text()}")


if __name__ == "__main__":
    main()
