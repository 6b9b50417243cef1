"""Proof and cost of `captioner batch`: many small photos, while workers and the run are killed.

    python -m benchmarks.batch FOLDER [--photos 10000] [--kill-after 5] [--engines local ray]
    python -m benchmarks.batch FOLDER --rates 3 [--photos 1000] [--images DIR] [--checkpoint DIR]

Takes the photos from DIR, or cuts them from one that matplotlib ships, and writes a small model
into FOLDER; every thousandth file is no photo. The first run is local and undisturbed. Then, for
each engine, a worker is killed each time that some shards are done (not by the clock: on a busy
machine none would ever finish one), and the run itself is killed once, half-way, and begun again.
Rows lost, rows twice and parts that differ from the first run must be 0.

With --rates, instead: photos a second of a plain loop over the photos and of each engine with one
worker, from its first finished shard to its last, in turns; and photos a processor second, which on
a machine that does other work says more.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from matplotlib import cbook
from PIL import Image

from benchmarks.timing import descendants, machine
from captioner import Captioner
from captioner.data.images import open_image
from captioner.errors import ImageError
from captioner.visualization import Caption

SHARD, BATCH = 100, 50


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--photos", type=int, default=10_000)
    parser.add_argument("--kill-after", type=int, default=5, metavar="SHARDS")
    parser.add_argument("--engines", nargs="+", choices=["local", "ray"], default=["local", "ray"])
    parser.add_argument("--rates", type=int, metavar="ROUNDS", help="compare rates instead")
    parser.add_argument("--checkpoint", type=Path, help="instead of a small model")
    parser.add_argument("--images", type=Path, metavar="DIR", help="instead of small pieces")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    paths = draw(folder / "photos", arguments.photos, arguments.images)
    photos = folder / "photos.txt"
    photos.write_text("\n".join(map(str, paths)))
    model = arguments.checkpoint or small_model(folder / "model")
    command = [sys.executable, "-m", "captioner", "batch", photos, "--checkpoint", model]
    command += ["--device", "cpu", "--beam-size", "1", "--shard-size", str(SHARD), "--quiet"]
    command += ["--batch-size", str(BATCH), "--max-words", "6"]
    print(machine(torch.device("cpu")))
    if arguments.rates:
        for _ in range(arguments.rates):
            rates = {"plain loop": plain_rates(paths, model)}
            for engine in arguments.engines:
                output = folder / f"rate_{engine}"
                one = [*command, "--output", output, "--engine", engine, "--workers", "1"]
                rates[engine] = engine_rates(one, output)
            for name, found in rates.items():
                ratios = [a / b for a, b in zip(found, rates["plain loop"], strict=True)]
                by_clock, by_processor = (
                    f"{rate:.1f} ({ratio:.2f})" for rate, ratio in zip(found, ratios, strict=True)
                )
                print(f"{name}: {by_clock} a second, {by_processor} a processor second", flush=True)
            print(f"load {os.getloadavg()[0]:.1f}", flush=True)
        return 0
    reference = folder / "undisturbed"
    begun = time.monotonic()
    shutil.rmtree(reference, ignore_errors=True)
    ended = subprocess.run(list(map(str, [*command, "--output", reference])), check=False)
    assert ended.returncode in (0, 1), ended
    print(f"undisturbed: {time.monotonic() - begun:.0f} s, {figures(reference)}", flush=True)
    failed = False
    for engine in arguments.engines:
        output = folder / f"killed_{engine}"
        begun = time.monotonic()
        killed = disturb([*command, "--output", output, "--engine", engine], arguments.kill_after)
        seconds = time.monotonic() - begun
        counts = compare(output, reference, paths)
        failed |= any(counts.values())
        print(f"{engine}: {seconds:.0f} s, {killed}, {figures(output)}, {counts}", flush=True)
    return int(failed)


def draw(folder: Path, count: int, images: Path | None) -> list[Path]:
    """Return photos of a folder, or small JPEGs, random pieces of a photo."""
    whole = Image.open(cbook.get_sample_data("grace_hopper.jpg"))
    given = sorted(images.iterdir())[:count] if images else [Path()] * count
    paths = []
    for number, found in enumerate(given):
        path = folder / f"{number // 1000:03d}" / f"{number:06d}.jpg"
        if images and number % 1000 != 999:
            paths.append(found.absolute())
            continue
        paths.append(path.absolute())
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if number % 1000 == 999:
            path.write_bytes(b"no photo")
            continue
        generator = np.random.default_rng(number)
        x, y = generator.integers(0, (whole.width - 192, whole.height - 128))
        whole.resize((96, 64), box=(x, y, x + 192, y + 128)).save(path)
    return paths


def small_model(folder: Path) -> Path:
    """Write a model with random weights, as the tests have it."""
    if not folder.exists():
        sys.path.append(str(Path(__file__).parents[1] / "tests"))
        import tiny

        from captioner.checkpoint_writer import save_model
        from captioner.export import export_graphs

        save_model(folder, *tiny.model(), card="# A small model\n")
        export_graphs(folder)
    return folder


def disturb(command: list[Any], kill_after: int) -> Counter[str]:
    """Kill a random worker after every few shards, and the run once, half-way; begin it again."""
    output = Path(command[command.index("--output") + 1])
    shutil.rmtree(output, ignore_errors=True)
    killed: Counter[str] = Counter()
    choice = random.Random(1)
    shards = len(list((output.parent / "undisturbed" / "parts").iterdir()))
    next_kill = kill_after
    while True:
        running = subprocess.Popen(list(map(str, command)))
        while running.poll() is None:
            time.sleep(0.05)
            done = len(list((output / "parts").glob("*.parquet")))
            if done >= shards // 2 and not killed["run"]:
                running.kill()
                running.wait()
                killed["run"] += 1
            elif done >= next_kill and (pids := workers(running.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(choice.choice(pids), signal.SIGKILL)
                    killed["workers"] += 1
                    next_kill = done + kill_after
        if running.returncode in (0, 1):
            return killed
        # The local engine ends with its first worker; Ray starts another one.
        assert running.returncode in (-signal.SIGKILL, 2), running.returncode


def workers(run_pid: int) -> list[int]:
    """Return the processes that hold the model: of the local engine, or Ray's actors."""
    found = []
    for pid in descendants(run_pid):
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"ray::ShardWorker" in line or b"multiprocessing.spawn" in line:
                found.append(pid)
    return found


def compare(output: Path, reference: Path, paths: list[Path]) -> dict[str, int]:
    """Count photos without a row, photos with several, and parts that differ."""
    expected = set(map(str, paths))
    rows = Counter(
        path
        for part in (output / "parts").iterdir()
        for path in pq.read_table(part, columns=["path"])["path"].to_pylist()
    )
    names = {part.name for side in (output, reference) for part in (side / "parts").iterdir()}

    def content(side: Path, name: str) -> bytes:
        part = side / "parts" / name
        return part.read_bytes() if part.exists() else b""

    return {
        "lost": len(expected - set(rows)),
        "twice": sum(count > 1 for count in rows.values()),
        "parts that differ": sum(content(output, n) != content(reference, n) for n in names),
    }


def plain_rates(paths: list[Path], model: Path) -> tuple[float, float]:
    """Return photos a second, and a processor second, of a loop on one thread without output."""
    os.environ["OMP_NUM_THREADS"] = "1"
    captioner = Captioner.from_pretrained(model, device="cpu")

    def caption(batch: list[Path]) -> None:
        inputs = []
        for path in batch:
            try:
                inputs.append(captioner.transform.array(open_image(path)))
            except ImageError:
                continue
        kept.extend(captioner.caption_batch(inputs, beam_size=1, max_words=6))

    kept: list[Caption] = []
    caption(paths[:BATCH])
    begun = time.monotonic(), time.process_time()
    for first in range(BATCH, len(paths), BATCH):
        caption(paths[first : first + BATCH])
    count = len(paths) - BATCH
    return count / (time.monotonic() - begun[0]), count / (time.process_time() - begun[1])


def engine_rates(command: list[Any], output: Path) -> tuple[float, float]:
    """Return photos a second, and a processor second, from a run's first shard to its last.

    The processor seconds are those of all of the run's processes, Ray's own included.
    """
    shutil.rmtree(output, ignore_errors=True)
    seen: list[tuple[float, float]] = []  # when a shard was done, and processor seconds by then
    with subprocess.Popen(list(map(str, command))) as running:
        while running.poll() is None:
            time.sleep(0.02)
            if len(list((output / "parts").glob("*.parquet"))) > len(seen):
                seen.append((time.monotonic(), processor_seconds(running.pid)))
    count = SHARD * (len(seen) - 1)
    return count / (seen[-1][0] - seen[0][0]), count / (seen[-1][1] - seen[0][1])


def processor_seconds(run_pid: int) -> float:
    """Return the processor time of a process and of all that it started."""
    ticks = 0
    for pid in descendants(run_pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # with children that ended
    return ticks / os.sysconf("SC_CLK_TCK")


def figures(output: Path) -> str:
    """Return the rate of the last run, and bytes a photo."""
    summary = json.loads((output / "summary.json").read_bytes())
    photos, seconds = summary["run"]["photos"], summary["run"]["seconds"]
    size = sum(part.stat().st_size for part in (output / "parts").iterdir())
    return (
        f"{photos} photos, {summary['errors']} errors, {photos / seconds:.1f} photos a second, "
        f"{size / summary['photos']:.0f} bytes a photo"
    )


if __name__ == "__main__":
    sys.exit(main())
