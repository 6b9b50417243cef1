"""How many cores the process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Count the cores by affinity, by the quota of the control group, and by OMP_NUM_THREADS.

    Args:
        cgroup: Where the control group's files are, of version 2 or 1.
    """
    affinity = hasattr(os, "sched_getaffinity")
    counts = [len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1]
    quota = _quota(cgroup)
    if quota is not None:
        counts.append(max(1, math.ceil(quota)))
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if given.isdecimal() and int(given):
        counts.append(int(given))
    return min(counts)


def _quota(cgroup: Path) -> float | None:
    """Return the cores that the control group's quota is worth, or None without one."""
    try:
        if (cgroup / "cpu.max").is_file():
            quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        else:
            quota, period = (
                (cgroup / "cpu" / name).read_text(encoding="ascii").strip()
                for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            )
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # no control groups, or "max"
        return None
