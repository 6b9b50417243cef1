"""From the start of `caption.py` to the picture, against importing PyTorch and torchvision."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.timing import Table, in_turns

REPOSITORY = Path(__file__).resolve().parents[1]


def run(*, photo: Path, rounds: int) -> Table:
    """Processes one after another in turns; all from a warm disk."""
    with tempfile.TemporaryDirectory() as folder:
        commands = {
            "import torch, torchvision": [sys.executable, "-c", "import torch, torchvision"],
            "import torch": [sys.executable, "-c", "import torch"],
            "caption.py": [sys.executable, "caption.py", str(photo), "--device", "cpu"],
            "caption.py --output": [
                *(sys.executable, "caption.py", str(photo), "--device", "cpu"),
                *("--output", folder),
            ],
        }
        found = in_turns({name: _call(line) for name, line in commands.items()}, rounds=rounds)
    limit = found["import torch, torchvision"].median_s
    rows = [
        {
            "process": name,
            "s": timing.median_s,
            "least": timing.least_s,
            "most": timing.most_s,
            "of the imports": timing.median_s / limit,
        }
        for name, timing in found.items()
    ]
    return Table("One photo, from process start to its picture, bundled model", rows)


def _call(command: list[str]) -> Callable[[], object]:
    return lambda: subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
