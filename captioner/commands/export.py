"""`captioner export`: a trained model as a small folder to share, or to bundle."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from captioner.checkpoint import CARD, load_model, save_model
from captioner.commands import run_command
from captioner.errors import CheckpointError
from captioner.pipeline import model_folder


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="captioner export",
        description="Copy a trained model into a folder of its own with half-precision weights, "
        "half the size; captioner computes with them in single precision.",
    )
    parser.add_argument("checkpoint", help="a run, or a model folder")
    parser.add_argument("output", type=Path, help="folder to make; it must not exist")
    parser.add_argument("--card", type=Path, help="model card; by default the checkpoint's own")
    arguments = parser.parse_args(argv)
    return run_command(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    if arguments.output.exists():
        raise CheckpointError(f"{arguments.output}: already exists; name another folder")
    folder = model_folder(arguments.checkpoint)
    model, config, vocabulary = load_model(folder)
    card = arguments.card or folder / CARD
    try:
        text = card.read_text(encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{card}: cannot be read ({error.strerror})") from None
    save_model(arguments.output, model, config, vocabulary, card=text, dtype=torch.float16)
    print(arguments.output)
    return 0
