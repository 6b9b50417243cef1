"""Records of a run: metrics.jsonl and TensorBoard events."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

from captioner.errors import CaptionerError
from captioner.files import save_bytes

METRICS = "metrics.jsonl"


class RunLog:
    """Writes one line of JSON for each entry, and the same figures to TensorBoard.

    A figure that is not finite is null in JSON. Opened at a step, it forgets what was written after
    that step, so that a resumed run writes the same log as one that was never interrupted.
    """

    def __init__(self, run: Path, resume_step: int) -> None:
        self.run, self.path = run, run / METRICS
        with self._explained_errors():
            run.mkdir(parents=True, exist_ok=True)
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
        with self._explained_errors():
            self.writer.close()

    def write(self, kind: str, step: int, figures: Mapping[str, Any]) -> None:
        """Append an entry of a kind (`train`, `validation`) after an optimizer step."""
        entry = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in figures.items()
        }
        with self._explained_errors():
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"kind": kind, "step": step, **entry}) + "\n")
            for name, value in figures.items():
                if isinstance(value, (int, float)):
                    self.writer.add_scalar(f"{kind}/{name}", value, step)

    def write_validation(self, epoch: int, step: int, figures: Mapping[str, Any]) -> None:
        """Append the entry of a validation, unless a run that was killed has written it."""
        if epoch not in self._validated:
            self.write("validation", step, {"epoch": epoch, **figures})

    def pictures(self, step: int, sheets: Sequence[Image.Image]) -> None:
        """Add attention sheets to TensorBoard."""
        with self._explained_errors():
            for index, sheet in enumerate(sheets):
                pixels = np.asarray(sheet)
                self.writer.add_image(f"samples/{index}", pixels, step, dataformats="HWC")
            self.writer.flush()

    @contextlib.contextmanager
    def _explained_errors(self) -> Iterator[None]:
        """Turn an error of the disk into a CaptionerError that tells what to do."""
        try:
            yield
        except OSError as error:
            raise CaptionerError(
                f"{self.run}: the run's figures cannot be written "
                f"({error.strerror or error}); free some disk, and go on with --resume"
            ) from None
