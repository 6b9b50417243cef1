"""How many cores the process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_cores(cgroup: Path = _CGROUP) -> int:
    """Count the cores by affinity and by the quota of the control group (version 2)."""
    affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        return min(cores, max(1, math.ceil(float(quota) / float(period))))
    except (OSError, ValueError):  # no control groups, or "max"
        return cores


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Count the cores for the threads of this process: those available, or OMP_NUM_THREADS."""
    cores = available_cores(cgroup)
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return min(cores, int(given)) if given.isdecimal() and int(given) else cores
