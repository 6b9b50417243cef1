"""Training with two processes against one: seconds a step, in turns, and bytes exchanged.

    python -m benchmarks.processes FOLDER [--rounds 3] [--epochs 1] [--config configs/table.yaml]

Writes 400 small photos with captions of made-up words into FOLDER and trains on them with one
process of one thread, two of one thread each (torchrun) and one of two threads, with the same
global batch. The bytes are the median of a step on the loopback device, where other traffic counts
too.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import shutil
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.batch import draw
from captioner.cli.plot import read_metrics
from captioner.errors import CheckpointError

PHOTOS, WORDS, CAPTION = 400, 500, 11
SENT = Path("/sys/class/net/lo/statistics/tx_bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--config", default="configs/table.yaml")
    arguments = parser.parse_args()
    table = write_table(arguments.folder)
    options = ["--config", arguments.config, "--data.root", str(table), "--data.workers", "0"]
    options += ["--data.batch_size", "40"]
    options += ["--train.epochs", str(arguments.epochs), "--train.val_photos", "2"]
    options += ["--train.device", "cpu", "--train.log_every", "1", "--train.checkpoint_every", "0"]
    options += ["--train.samples", "0", "--train.calibrate_from", "0"]
    for _ in range(arguments.rounds):
        seconds, said = {}, {}
        for name, processes, threads in (("1 x 1", 1, 1), ("2 x 1", 2, 1), ("1 x 2", 1, 2)):
            step_s, sent = train(arguments.folder / "run", options, processes, threads)
            seconds[name] = step_s
            said[name] = f"{step_s:.2f} s a step, {sent / processes / 1e6:.1f} MB sent by each"
        said["efficiency of 2 x 1"] = f"{seconds['1 x 1'] / seconds['2 x 1'] / 2:.2f}"
        said["load"] = f"{os.getloadavg()[0]:.1f}"
        print(said, flush=True)
    return 0


def write_table(folder: Path) -> Path:
    """Write photos and captions and return the table."""
    photos = draw(folder / "photos", PHOTOS, None)
    generator = np.random.default_rng(1)
    with (folder / "captions.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "caption", "split"])
        for number, photo in enumerate(photos):
            words = " ".join(f"word{each}" for each in generator.integers(0, WORDS, CAPTION))
            rows.writerow([photo, words, "val" if number < 2 else "train"])
    return folder / "captions.csv"


def train(run: Path, options: list[str], processes: int, threads: int) -> tuple[float, float]:
    """Return the median seconds of a step, and the bytes that were sent a step, of a run."""
    shutil.rmtree(run, ignore_errors=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(processes), "train.py", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    seen: list[tuple[float, int]] = []  # of each step its seconds, and what was sent by then
    with subprocess.Popen(
        [*command, "--train.output", str(run)], env=environment, stdout=subprocess.DEVNULL
    ) as running:
        while running.poll() is None:
            time.sleep(0.02)
            sent = int(SENT.read_text()) if SENT.exists() else 0
            with contextlib.suppress(CheckpointError):  # nothing is logged yet
                steps = [entry for entry in read_metrics(run) if "step_s" in entry]
                seen += [(entry["step_s"], sent) for entry in steps[len(seen) :]]
    assert running.returncode == 0
    steps = seen[2:-1]
    return (
        statistics.median(seconds for seconds, _ in steps),
        statistics.median(b - a for (_, a), (_, b) in pairwise(steps)),
    )


if __name__ == "__main__":
    sys.exit(main())
