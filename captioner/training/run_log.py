"""Records of a run: metrics.jsonl, TensorBoard events, samples of its attention."""

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
    """Writes one line of JSON for each entry, and the same figures to TensorBoard.

    JSON knows neither NaN nor infinity: such a figure is null there, and itself in TensorBoard.
    Opened at a step, it forgets what was written after that step, so that a resumed run writes the
    same log as one that was never interrupted. A context manager; it closes at the end.

    Args:
        run: Run folder.
        resume_step: Optimizer steps done so far.
    """

    def __init__(self, run: Path, *, resume_step: int) -> None:
        self.path = run / "metrics.jsonl"
        with self._explained_errors():
            run.mkdir(parents=True, exist_ok=True)
            kept = []
            if self.path.exists():
                lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
                kept = [
                    line for line in lines if _parsed(line).get("step", math.inf) <= resume_step
                ]
            entries = map(_parsed, kept)
            self._validated = {e.get("epoch") for e in entries if e.get("kind") == "validation"}
            save_bytes("".join(f"{line}\n" for line in kept).encode(), self.path)
            self.writer = SummaryWriter(str(run / "tensorboard"), purge_step=resume_step + 1)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what TensorBoard still holds.

        Raises:
            CaptionerError: The disk refuses.
        """
        with self._explained_errors():
            self.writer.close()

    def write(self, kind: str, step: int, figures: Mapping[str, Any]) -> None:
        """Append an entry.

        Args:
            kind: `train` or `validation`.
            step: Optimizer steps done.
            figures: Values by name.

        Raises:
            CaptionerError: The disk refuses.
        """
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

    def write_validation(self, entry: Mapping[str, Any]) -> None:
        """Append the entry of a validation, which holds its `step` and `epoch`, once.

        A checkpoint holds the last entry, so that a run that was killed between the checkpoint and
        the log writes it when it is resumed. An empty entry is none.
        """
        if entry and entry["epoch"] not in self._validated:
            self._validated.add(entry["epoch"])
            figures = {name: value for name, value in entry.items() if name != "step"}
            self.write("validation", entry["step"], figures)

    def pictures(self, step: int, sheets: Sequence[Image.Image]) -> None:
        """Add attention sheets to TensorBoard."""
        with self._explained_errors():
            for index, sheet in enumerate(sheets):
                self.writer.add_image(
                    f"samples/{index}", np.asarray(sheet), step, dataformats="HWC"
                )
            self.writer.flush()

    def sample(self, index: int, epoch: int, image: Image.Image, caption: Caption) -> None:
        """Keep the caption of a sample image after an epoch, for `captioner plot`.

        Args:
            index: Number of the sample, from 1.
            epoch: Epochs done.
            image: The image; it is kept small, and once.
            caption: Its caption, with maps: a few kilobytes.
        """
        folder = self.path.parent / "samples" / str(index)
        small, caption = shrunk(image, caption, longest_side_px=SAMPLE_PX)
        if not (folder / "photo.jpg").exists():
            save_bytes(jpeg(small), folder / "photo.jpg")
        # A resumed run writes its epochs anew.
        save_npz(caption_arrays(caption), folder / f"epoch-{epoch:04d}.npz")

    @contextlib.contextmanager
    def _explained_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CaptionerError(
                f"{self.path.parent}: the run's figures cannot be written "
                f"({error.strerror or error}); free some disk, and go on with --resume"
            ) from None


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
