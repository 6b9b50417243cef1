"""The card of a model folder: what the model was trained on and how, and its figures."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch

import captioner
from captioner.config import to_yaml
from captioner.config.settings import Config
from captioner.config.validation import data_sources
from captioner.training.validation import validation_decoding

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
        **{package: version(package) for package in PACKAGES},
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
    return CARD.format(
        attention=config.attention.select,
        backbone=config.encoder.backbone,
        data=_splits(config, "train_split"),
        figures="\n".join(validated),
        origin="\n".join(f"| {name} | {value} |" for name, value in origin.items()),
        recipe=to_yaml(config).rstrip(),
    )


def _splits(config: Config, key: str) -> str:
    """Name the splits of all sources: `key` is `train_split` or `val_split`."""
    splits = ((getattr(source, key), source.name) for source in data_sources(config.data))
    return " and ".join(f"split {split} of {name}" for split, name in splits if split is not None)
