"""The README.md of a model folder that training writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from captioner.config import Config, data_sources, to_yaml
from captioner.training.validation import validation_decoding

# What model hubs read; the licence is for the owner of the data to add.
FRONT_MATTER = (
    "---",
    "library_name: captioner",
    "pipeline_tag: image-to-text",
    "tags: [image-captioning, attention, show-attend-and-tell]",
    "---",
)


def model_card(
    config: Config,
    figures: dict[str, Any],
    origin: Mapping[str, str] | None = None,
) -> str:
    """Return the card: what the model was trained on and how, and its validation figures.

    Args:
        config: The recipe.
        figures: Figures of the best validation; empty before the first.
        origin: Facts by name: versions, threads, revision, and hashes of the data.
    """
    lines = [
        *FRONT_MATTER,
        "# A captioner model",
        "",
        f"{config.attention.select} attention over {config.encoder.backbone}, trained on "
        f"{_splits(config, 'train_split')}.",
        "",
        "## Figures",
        "",
    ]
    if figures:
        lines += [
            f"On {_splits(config, 'val_split')}, epoch {figures['epoch']}, beam "
            f"{validation_decoding(config).beam_size}, scored with the Python tokenizer "
            "(`captioner evaluate` gives the figures to publish):",
            "",
            "| metric | value |",
            "| --- | --- |",
            *(f"| {name} | {value:.4f} |" for name, value in figures.items() if name != "epoch"),
        ]
    else:
        lines.append("Not validated yet.")
    if origin:
        lines += ["", "## Made with", "", "| | |", "| --- | --- |"]
        lines += [f"| {name} | {value} |" for name, value in origin.items()]
    return "\n".join([*lines, "", "## Recipe", "", "```yaml", to_yaml(config).rstrip(), "```", ""])


def _splits(config: Config, key: str) -> str:
    """Name the splits of all sources: `key` is `train_split` or `val_split`."""
    splits = ((getattr(source, key), source.name) for source in data_sources(config.data))
    return " and ".join(f"split {split} of {name}" for split, name in splits if split is not None)
