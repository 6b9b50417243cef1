"""The lines of metrics.jsonl as a run that goes on reads them: damaged ones are no entries."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from captioner.files import save_bytes

NAME = "metrics.jsonl"


def keep_entries(path: Path, *, last_step: int) -> list[dict[str, Any]]:
    """Take all lines but the entries of steps up to `last_step` out of a file, and return these."""
    lines: list[str] = []
    if path.exists():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    kept = [line for line in lines if _parsed(line).get("step", math.inf) <= last_step]
    save_bytes("".join(f"{line}\n" for line in kept).encode(), path)
    return [_parsed(line) for line in kept]


def logged_progress(run: Path) -> tuple[int, int]:
    """Return the last step in a run's log and its epoch, counted from 0; zeros without a log."""
    try:
        lines = (run / NAME).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return 0, 0
    return max(((e.get("step", 0), e.get("epoch", 0)) for e in map(_parsed, lines)), default=(0, 0))


def _parsed(line: str) -> dict[str, Any]:
    """Return an entry; an empty one for a line that is damaged, or that a crash cut short."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(entry, dict):
        return {}
    whole = all(isinstance(entry.get(name, 0), int) for name in ("step", "epoch"))
    return entry if whole else {}
