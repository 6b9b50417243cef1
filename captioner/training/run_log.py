"""Records of a run: metrics.jsonl, TensorBoard events, and the card of its model."""

from __future__ import annotations

import contextlib
import json
import math
import platform
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

import captioner
from captioner.config import to_yaml
from captioner.config.settings import Config
from captioner.config.validation import data_sources
from captioner.files import save_bytes, writing
from captioner.training.validation import validation_decoding

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
                for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
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


# Packages whose versions a model card records.
PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow")
# It begins with what model hubs read; the licence is for the owner of the data to add.
CARD = """\
---
library_name: captioner
pipeline_tag: image-to-text
tags: [image-captioning, attention, show-attend-and-tell]
---
# A captioner model

{attention} attention over {backbone}, trained on {data}.

## Figures

{figures}

## Made with

| | |
| --- | --- |
{origin}

## Recipe

```yaml
{recipe}
```
"""


def model_card(config: Config, figures: dict[str, Any], digests: Mapping[str, str]) -> str:
    """Return the card in Markdown; `figures` of the best validation are empty before the first."""
    origin = {
        "captioner": captioner.__version__,
        "python": platform.python_version(),
        **{package: metadata.version(package) for package in PACKAGES},
        "threads": torch.get_num_threads(),
        **digests,
    }
    validated = ["Not validated yet."]
    if figures:
        validated = [
            f"On {_splits(config, 'val_split')}, epoch {figures['epoch']}, beam "
            f"{validation_decoding(config).beam_size}, scored with the Python tokenizer "
            "(`captioner evaluate` gives the figures to publish):",
            "",
            "| metric | value |",
            "| --- | --- |",
            *(f"| {name} | {value:.4f} |" for name, value in figures.items() if name != "epoch"),
        ]
    # Not where the files of this machine lie: a model is given to others.
    recipe = re.sub(r"(?m)^(.*?[:-] ['\"]?)/.*/([^/\n]+/?)$", r"\1…/\2", to_yaml(config))
    return CARD.format(
        attention=config.attention.select,
        backbone=config.encoder.backbone,
        data=_splits(config, "train_split"),
        figures="\n".join(validated),
        origin="\n".join(f"| {name} | {value} |" for name, value in origin.items()),
        recipe=recipe.rstrip(),
    )


def _splits(config: Config, key: str) -> str:
    """Name the splits of all sources: `key` is `train_split` or `val_split`."""
    parts = []
    for source in data_sources(config.data):
        name = Path(source.root).absolute().name if source.name == "source" else source.name
        if (split := getattr(source, key)) is not None:
            parts.append(f"split {split} of {name}")
    return " and ".join(parts)
