"""`captioner export`: a trained model as a small folder to share, or to bundle."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from captioner.cli import run_command, show
from captioner.errors import CheckpointError


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="captioner export",
        description="Copy a trained model into a folder of its own with half-precision weights, "
        "half the size; captioner computes with them in single precision.",
    )
    parser.add_argument("checkpoint", type=Path, help="a run, or a model folder")
    parser.add_argument("output", type=Path, help="folder to make; it must not exist")
    parser.add_argument("--card", type=Path, help="model card; by default the checkpoint's own")
    search = parser.add_argument_group("search settings to store; by default the checkpoint's own")
    search.add_argument("--beam-size", type=int)
    search.add_argument("--max-words", type=int)
    search.add_argument("--length-penalty", type=float)
    search.add_argument("--no-repeat-ngram", type=int)
    arguments = parser.parse_args(argv)
    return run_command(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    import torch

    from captioner.checkpoint import CARD, load_model, model_folder, save_model
    from captioner.config import validate

    if arguments.output.exists():
        raise CheckpointError(f"{arguments.output}: already exists; name another folder")
    folder = model_folder(arguments.checkpoint)
    model, config, vocabulary = load_model(folder)
    names = ("beam_size", "max_words", "length_penalty", "no_repeat_ngram")
    given = {name: getattr(arguments, name) for name in names}
    given = {name: value for name, value in given.items() if value is not None}
    config = replace(config, decoding=replace(config.decoding, **given))
    validate(config)
    card = arguments.card or folder / CARD
    try:
        text = card.read_text(encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{card}: cannot be read ({error.strerror})") from None
    save_model(arguments.output, model, config, vocabulary, card=text, dtype=torch.float16)
    show(str(arguments.output))
    return 0
