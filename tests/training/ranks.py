"""Trains recipes one after another as one of several processes; a program for test_distributed.py.

Arguments: folder of the data, `float32` or `float64`, and a JSON file of
[[run folder, {section__key: value}, port], ...].
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import tiny
import torch

from captioner.config import SourceConfig
from captioner.training import train


def main() -> None:
    root, kind, runs = sys.argv[1:]
    torch.set_num_threads(1)
    torch.set_default_dtype(getattr(torch, kind))
    for output, changes, port in json.loads(Path(runs).read_text()):
        os.environ["MASTER_PORT"] = str(port)
        resume = changes.pop("resume", False)
        for key, value in changes.items():
            if key == "data__sources":
                changes[key] = tuple(SourceConfig(**source) for source in value)
            elif isinstance(value, list):
                changes[key] = tuple(value)
        train(tiny.recipe(Path(root), Path(output), **changes), resume=resume)


if __name__ == "__main__":
    main()
