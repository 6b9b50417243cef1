"""Record what the program computes, and compare it after a change of the code.

    python -m benchmarks.golden record DIR --photos FOLDER [--photos-limit 200] [--only PART ...]
    python -m benchmarks.golden compare DIR [--only PART ...] [--tolerance 1e-4]

`record` writes golden files of these parts to DIR:

    captions  caption, log-probabilities, confidence and maps: both bundled models, both engines
    training  losses and gradient norms of 20 steps: soft, hard and self-critical
    sheets    the pixels of 6 attention sheets, as hashes
    results   results.json of `captioner evaluate`

`compare` computes the same from the photos and settings of DIR and prints a line for each file:
"same to the bit", "close" with the largest difference, or what differs. It exits with 1 if a
caption or hash differs, or a number by more than the tolerance. Compare on the machine that
recorded. A quick check takes 20 photos and two parts:

    python -m benchmarks.golden record out/golden --photos FOLDER --photos-limit 20
    python -m benchmarks.golden compare out/golden --only captions training

A change that is meant needs new golden files: record them again, and say so in the commit.
The references of `training` and `results` are drawn words, so their scores mean nothing.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # sums in one order, on a busy machine too

import numpy as np
from PIL import Image

MODELS, ENGINES, TASKS = ("soft", "hard"), ("torch", "runtime"), ("soft", "hard", "self_critical")
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}
BATCH = 20  # photos
RECIPE = {
    "data.format": "table",
    "data.batch_size": "16",
    "data.workers": "0",
    "data.min_count": "1",
    "preprocess.height_px": "128",
    "preprocess.width_px": "128",
    "encoder.project_dim": "32",
    "attention.dim": "16",
    "decoder.hidden_dim": "32",
    "decoder.embed_dim": "32",
    "optim.warmup_steps": "0",
    "train.epochs": "4",
    "train.log_every": "1",
    "train.patience": "0",
    "train.metric": "ROUGE_L",
    "train.calibrate_from": "0",
    "train.samples": "0",
    "train.device": "cpu",
}
TASK_SETTINGS = {
    "soft": {"encoder.trainable_from": "blocks.5"},
    "hard": {"attention.select": "hard"},
    "self_critical": {"self_critical.samples": "3"},
}


def captions(photos: list[Path], model: str, engine: str) -> dict[str, Any]:
    """Return captions, their numbers and maps of all photos."""
    from captioner import Captioner

    captioner = Captioner.from_pretrained(model, device="cpu", engine=engine)
    found = []
    for start in range(0, len(photos), BATCH):
        found += captioner.caption_batch(photos[start : start + BATCH])
    return {
        "captions": np.array([caption.text for caption in found]),
        "log_probs": np.concatenate([caption.log_probs for caption in found]),
        "confidence": np.array([caption.confidence for caption in found], dtype=float),
        "maps": np.concatenate([caption.maps.ravel() for caption in found]),
    }


def sheets(photos: list[Path], model: str) -> dict[str, Any]:
    """Return hashes of the pixels of attention sheets."""
    from captioner import Captioner

    captioner = Captioner.from_pretrained(model, device="cpu", engine="runtime")
    hashes = []
    with tempfile.TemporaryDirectory() as folder:
        for number, photo in enumerate(photos[:6]):
            path = Path(folder) / f"{number}.png"
            captioner.caption(photo).save(path)
            with Image.open(path) as sheet:
                pixels = np.asarray(sheet.convert("RGB"))
            hashes.append(f"{pixels.shape} {hashlib.sha256(pixels.tobytes()).hexdigest()}")
    return {"sheets": np.array(hashes)}


def training(photos: list[Path], task: str) -> dict[str, Any]:
    """Return losses and gradient norms of 20 steps of 16 captions, two of each photo."""
    with tempfile.TemporaryDirectory() as folder:
        table = write_table(
            Path(folder) / "captions.csv", [photos[i % len(photos)] for i in range(44)]
        )
        run = Path(folder) / "run"
        settings = {**RECIPE, **TASK_SETTINGS[task]}
        settings |= {"data.root": str(table), "train.output": str(run)}
        command("train", *(f"--{key}={value}" for key, value in settings.items()))
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [entry for entry in map(json.loads, lines) if entry["kind"] == "train"]
    return {
        name: np.array([step[name] for step in steps])
        for name in ("cross_entropy", "sampled_cross_entropy", "gradient_norm")
        if name in steps[0]
    }


def results(photos: list[Path], model: str) -> dict[str, Any]:
    """Return the captions and metrics of results.json."""
    with tempfile.TemporaryDirectory() as folder:
        table = write_table(Path(folder) / "captions.csv", photos[:40], split="test")
        output = Path(folder) / "results.json"
        command(
            *("evaluate", "--model", model, "--format", "table", "--root", str(table)),
            *("--split", "test", "--device", "cpu", "--output", str(output)),
        )
        found = json.loads(output.read_text(encoding="utf-8"))
    metrics = {name: value for name, value in found["metrics"].items() if value is not None}
    return {
        "captions": np.array([entry["caption"] for entry in found["captions"]]),
        "names": np.array(sorted(metrics)),
        "metrics": np.array([metrics[name] for name in sorted(metrics)], dtype=float),
    }


def write_table(path: Path, photos: list[Path], split: str | None = None) -> Path:
    """Write a table of photos with two drawn captions each; the last four are for validation."""
    draw = random.Random(7)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "caption", "split"])
        for index, photo in enumerate(photos):
            for _ in range(2):
                noun, place = draw.choice(["dog", "man", "ball"]), draw.choice(["grass", "beach"])
                caption = f"a {draw.choice(['red', 'small', 'happy'])} {noun} is on the {place}"
                where = split or ("val" if index >= len(photos) - 4 else "train")
                writer.writerow([photo.resolve(), caption, where])
    return path


def command(*arguments: str) -> None:
    """Run a command of the program; end with its message where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "captioner", *arguments], capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"captioner {arguments[0]} failed:\n{done.stderr}")


def parts(photos: list[Path], only: list[str]) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the functions that compute each golden file, by its name."""
    every: dict[str, Callable[[], dict[str, Any]]] = {
        f"captions-{m}-{e}": lambda m=m, e=e: captions(photos, m, e)
        for m in MODELS
        for e in ENGINES
    }
    every |= {f"training-{task}": lambda task=task: training(photos, task) for task in TASKS}
    every |= {f"sheets-{model}": lambda model=model: sheets(photos, model) for model in MODELS}
    every |= {f"results-{model}": lambda model=model: results(photos, model) for model in MODELS}
    return {name: make for name, make in every.items() if not only or name.split("-")[0] in only}


def difference(before: dict[str, Any], now: dict[str, Any], tolerance: float) -> tuple[bool, str]:
    """Return whether two golden files are close, and a sentence about them."""
    largest = 0.0
    for name, old in before.items():
        new = now[name]
        if old.dtype.kind == "U":
            if old.shape != new.shape:
                return False, f"{name}: {len(old)} before, {len(new)} now"
            changed = np.flatnonzero(old != new)
            if changed.size:
                first = changed[0]
                return False, (
                    f"{name}: {changed.size} of {len(old)} differ; the first: "
                    f"{str(old[first])!r} before, {str(new[first])!r} now"
                )
        elif old.shape != new.shape:
            return False, f"{name}: {old.shape} numbers before, {new.shape} now"
        elif not np.array_equal(old, new, equal_nan=True):
            apart = float(np.nanmax(np.abs(old - new)))
            if not apart <= tolerance:
                return False, f"{name}: numbers differ by up to {apart:.2g}"
            largest = max(largest, apart)
    return True, f"close: numbers differ by up to {largest:.2g}" if largest else "same to the bit"


def main() -> int:
    parser = argparse.ArgumentParser(description="Record or compare what the program computes.")
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("folder", type=Path, metavar="DIR", help="of the golden files")
    parser.add_argument("--photos", type=Path, help="record: a folder of photos")
    parser.add_argument("--photos-limit", type=int, default=200, help="the first N by name")
    names = ("captions", "training", "sheets", "results")
    parser.add_argument("--only", nargs="+", default=[], choices=names, metavar="PART")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    if arguments.action == "record":
        if arguments.photos is None:
            parser.error("record needs --photos FOLDER")
        found = sorted(p for p in arguments.photos.iterdir() if p.suffix.lower() in SUFFIXES)
        photos = found[: arguments.photos_limit]
        if not photos:
            parser.error(f"{arguments.photos} has no photos")
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps([str(photo.resolve()) for photo in photos])
        (folder / "photos.json").write_text(text, encoding="utf-8")
    photos = [Path(p) for p in json.loads((folder / "photos.json").read_text(encoding="utf-8"))]
    failed = False
    for name, make in parts(photos, arguments.only).items():
        path = folder / f"{name}.npz"
        if arguments.action == "record":
            np.savez_compressed(path, **make())
            print(f"{name}: recorded", flush=True)
        else:
            with np.load(path) as before:
                close, sentence = difference(dict(before), make(), arguments.tolerance)
            failed |= not close
            print(f"{name}: {sentence}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
