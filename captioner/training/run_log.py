"""Records of a run: metrics.jsonl and TensorBoard events."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

from captioner.files import save_bytes, writing

METRICS = "metrics.jsonl"


class RunLog:
    """Writes one line of JSON for each entry, and the same figures to TensorBoard.

    A figure that is not finite is null in JSON. Opened at a step, it forgets what was written after
    that step, so that a resumed run writes the same log as one that was never interrupted.
    """

    def __init__(self, run: Path, resume_step: int) -> None:
        self.path = run / METRICS
        with writing(self.path):
            kept: list[dict[str, Any]] = []
            if self.path.exists():
                text = self.path.read_text(encoding="utf-8", errors="replace")
                for line in text.splitlines():
                    with contextlib.suppress(ValueError, KeyError, TypeError):  # cut by a crash
                        entry = json.loads(line)
                        if entry["step"] <= resume_step:
                            kept.append(entry)
            save_bytes("".join(f"{json.dumps(entry)}\n" for entry in kept).encode(), self.path)
            self._validated = {e.get("epoch") for e in kept if e.get("kind") == "validation"}
            self.writer = SummaryWriter(str(run / "tensorboard"), purge_step=resume_step + 1)

    def close(self) -> None:
        """Write what TensorBoard still holds."""
        with writing(self.path):
            self.writer.close()

    def write(self, kind: str, step: int, figures: Mapping[str, Any]) -> None:
        """Append an entry of a kind (`train`, `validation`) after an optimizer step."""
        entry = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in figures.items()
        }
        with writing(self.path):
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"kind": kind, "step": step, **entry}) + "\n")
            for name, value in figures.items():
                if isinstance(value, (int, float)):
                    self.writer.add_scalar(f"{kind}/{name}", value, step)

    def write_validation(self, epoch: int, step: int, figures: Mapping[str, Any]) -> None:
        """Append the entry of a validation, unless a run that was killed has written it."""
        if epoch not in self._validated:
            self.write("validation", step, {"epoch": epoch, **figures})
            self.writer.flush()  # a checkpoint follows, after which it is not written again

    def pictures(self, step: int, sheets: Sequence[Image.Image]) -> None:
        """Add attention sheets to TensorBoard."""
        with writing(self.path):
            for index, sheet in enumerate(sheets):
                pixels = np.asarray(sheet)
                self.writer.add_image(f"samples/{index}", pixels, step, dataformats="HWC")
            self.writer.flush()
