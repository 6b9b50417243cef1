"""What a run writes for people: metrics.jsonl, TensorBoard events, sample pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.tensorboard import SummaryWriter


class RunLog:
    """One line of JSON an entry, and the same figures in TensorBoard.

    JSON knows neither NaN nor infinity: such a figure is null there, and itself in TensorBoard.
    When a run is resumed, what was written after its checkpoint is forgotten.
    """

    def __init__(self, run: Path, *, resume_step: int) -> None:
        run.mkdir(parents=True, exist_ok=True)
        self.path = run / "metrics.jsonl"
        kept = []
        if self.path.exists():
            lines = self.path.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if _step_of(line) <= resume_step]
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        temporary.replace(self.path)
        self.writer = SummaryWriter(str(run / "tensorboard"), purge_step=resume_step + 1)

    def write(self, kind: str, step: int, figures: Mapping[str, Any]) -> None:
        """`kind` is `train` or `validation`."""
        entry = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in figures.items()
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "step": step, **entry}) + "\n")
        for name, value in figures.items():
            if isinstance(value, (int, float)):
                self.writer.add_scalar(f"{kind}/{name}", value, step)

    def pictures(self, step: int, sheets: Sequence[Image.Image]) -> None:
        for index, sheet in enumerate(sheets):
            self.writer.add_image(f"samples/{index}", np.asarray(sheet), step, dataformats="HWC")
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):  # a line that a crash cut short
        return float("inf")
