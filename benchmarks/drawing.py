"""`captioner caption` on a folder with pictures, against the same without."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.timing import Table, in_turns

REPOSITORY = Path(__file__).resolve().parents[1]
PHOTOS = REPOSITORY / "docs" / "photos"
WITHOUT = "captions"


def run(*, photos: int, rounds: int) -> Table:
    """Processes one after another in turns; photos of about 0.2 megapixels."""
    with tempfile.TemporaryDirectory() as name:
        folder, output = Path(name, "photos"), Path(name, "out")
        folder.mkdir()
        sources = sorted(PHOTOS.glob("*.jpg"))
        for number in range(photos):
            shutil.copy(sources[number % len(sources)], folder / f"{number}.jpg")
        kinds = {WITHOUT: None, "and a sheet each": "png", "and a page each": "html"}
        found = in_turns(
            {name: _call(folder, output, kind) for name, kind in kinds.items()}, rounds=rounds
        )
    rows = [
        {"work": name, "s": timing.median_s, "ratio": timing.median_s / found[WITHOUT].median_s}
        for name, timing in found.items()
    ]
    return Table(f"{photos} photos from a folder, bundled model", rows)


def _call(folder: Path, output: Path, kind: str | None) -> Callable[[], object]:
    command = [sys.executable, "caption.py", str(folder)]
    if kind:
        command += ["--output", str(output), "--save", kind]
    return lambda: subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
