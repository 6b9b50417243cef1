"""Trains a tiny recipe in float64 as one of several processes; a program for test_distributed.py.

Arguments: folder of the data, run folder, and settings as JSON, {section__key: value}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tiny
import torch

from captioner.config.settings import SourceConfig
from captioner.training import train


def main() -> None:
    root, output, settings = sys.argv[1:]
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    changes = json.loads(settings)
    resume = changes.pop("resume", False)
    if changes.get("train__compile") == "inductor":  # the same steps, without a minute to compile
        torch.compile = lambda task, **_: task
    for key, value in changes.items():
        if key == "data__sources":
            changes[key] = tuple(SourceConfig(**source) for source in value)
        elif isinstance(value, list):
            changes[key] = tuple(value)
    train(tiny.recipe(Path(root), Path(output), **changes), resume=resume)


if __name__ == "__main__":
    main()
