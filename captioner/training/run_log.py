"""What a run writes for people: metrics.jsonl, TensorBoard events, samples of its attention."""

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
from captioner.types import Caption
from captioner.visualization import caption_arrays, jpeg, save_npz, shrunk

SAMPLE_PX = 640  # longer side of the sample photos that a run keeps


class RunLog:
    """One line of JSON an entry, and the same figures in TensorBoard.

    JSON knows neither NaN nor infinity: such a figure is null there, and itself in TensorBoard.
    When a run is resumed, what was written after its checkpoint is forgotten.
    """

    def __init__(self, run: Path, *, resume_step: int) -> None:
        self.path = run / "metrics.jsonl"
        with self._told():
            run.mkdir(parents=True, exist_ok=True)
            kept = []
            if self.path.exists():
                lines = self.path.read_text(encoding="utf-8").splitlines()
                kept = [line for line in lines if _step_of(line) <= resume_step]
            save_bytes("".join(f"{line}\n" for line in kept).encode(), self.path)
            self.writer = SummaryWriter(str(run / "tensorboard"), purge_step=resume_step + 1)

    def write(self, kind: str, step: int, figures: Mapping[str, Any]) -> None:
        """`kind` is `train` or `validation`."""
        entry = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in figures.items()
        }
        with self._told():
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"kind": kind, "step": step, **entry}) + "\n")
            for name, value in figures.items():
                if isinstance(value, (int, float)):
                    self.writer.add_scalar(f"{kind}/{name}", value, step)

    def pictures(self, step: int, sheets: Sequence[Image.Image]) -> None:
        with self._told():
            for index, sheet in enumerate(sheets):
                self.writer.add_image(
                    f"samples/{index}", np.asarray(sheet), step, dataformats="HWC"
                )
            self.writer.flush()

    def sample(self, index: int, epoch: int, photo: Image.Image, caption: Caption) -> None:
        """Keep what was written about a sample photo after an epoch, from 1: `captioner plot`
        draws how attention grew. A few kilobytes each, and the photo, made small, once."""
        folder = self.path.parent / "samples" / str(index)
        small, caption = shrunk(photo, caption, longest_side_px=SAMPLE_PX)
        if not (folder / "photo.jpg").exists():
            save_bytes(jpeg(small), folder / "photo.jpg")
        # A run that is resumed writes its epochs anew.
        save_npz(caption_arrays(caption), folder / f"epoch-{epoch:04d}.npz")

    def close(self) -> None:
        with self._told():
            self.writer.close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What the disk refuses, in one sentence."""
        try:
            yield
        except OSError as error:
            raise CaptionerError(
                f"{self.path.parent}: the run's figures cannot be written "
                f"({error.strerror or error}); free some disk, and go on with --resume"
            ) from None


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):  # a line that a crash cut short
        return float("inf")
