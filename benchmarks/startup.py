"""From the start of `caption.py` to the picture, against importing PyTorch and torchvision."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.timing import Table, in_turns

REPOSITORY = Path(__file__).resolve().parents[1]
# A child begins with its parent's peak: it is measured from a parent that has next to nothing.
PEAK_KIB = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, capture_output=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


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
        peaks = {name: _peak_mib(line) for name, line in commands.items()}
    limit = found["import torch, torchvision"].median_s
    rows = [
        {
            "process": name,
            "s": timing.median_s,
            "least": timing.least_s,
            "most": timing.most_s,
            "of the imports": timing.median_s / limit,
            "peak MiB": peaks[name],
        }
        for name, timing in found.items()
    ]
    return Table("One photo, from process start to its picture, bundled model", rows)


def _call(command: list[str]) -> Callable[[], object]:
    return lambda: subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)


def _peak_mib(command: list[str]) -> float:
    small = [sys.executable, "-I", "-S", "-c", PEAK_KIB]
    told = subprocess.run([*small, *command], cwd=REPOSITORY, check=True, capture_output=True)
    return int(told.stdout) / 1024
