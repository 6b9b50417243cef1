"""Copy a trained model into a folder of its own with half-precision weights, half the size.

captioner computes with them in single precision. With --format onnx the weights stay as they are.
Both formats hold ONNX graphs, with which captioner captions on a CPU without PyTorch.
"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from captioner.cli import parsing, run_command, show
from captioner.errors import CheckpointError
from captioner.runtime.device import require_torch


def main(argv: list[str] | None = None) -> int:
    parser = parsing.CommandParser("export", __doc__)
    add = parser.add_argument
    add("checkpoint", help="a run, a model folder, or a bundled model's name")
    add(
        "output",
        type=parsing.folder,
        nargs="?",
        help="folder to make; it must not exist. Left out with --format onnx, the graphs are added "
        "to the checkpoint's own folder, unless it is a bundled model",
    )
    help_ = "half: weights in half precision; onnx: the model's own weights (default: half)"
    add("--format", choices=["half", "onnx"], default="half", help=help_)
    add("--card", type=Path, metavar="FILE", help="model card (default: the checkpoint's)")
    group = parser.add_argument_group("search settings to store (default: the checkpoint's)")
    group.add_argument("--beam-size", type=int, metavar="K", help="hypotheses kept; 1 is greedy")
    parsing.add_search_options(group)
    help_ = "no sequence of N words comes twice in a caption; 0 allows all"
    group.add_argument("--no-repeat-ngram", type=int, metavar="N", help=help_)
    arguments = parser.parse_args(argv)
    if arguments.output is None and arguments.format != "onnx":
        parser.error("name the folder to make, or give --format onnx to add graphs in place")
    names = ("beam_size", "max_words", "length_penalty", "no_repeat_ngram")
    search = parsing.given(arguments, *names)
    if arguments.output is None and (arguments.card or search):
        parser.error("search settings and --card need a folder to make, in which they are stored")
    return run_command(lambda: _run(arguments, search))


def _run(arguments: argparse.Namespace, search: dict[str, Any]) -> int:
    require_torch("export")
    import torch

    from captioner.checkpoint import (
        CARD,
        bundled_models,
        load_model,
        model_folder,
        read_extra_files,
        save_model,
        stored_type,
    )
    from captioner.config.validation import validate
    from captioner.export import export_graphs

    folder = model_folder(arguments.checkpoint)
    if arguments.output is None:
        if arguments.checkpoint in bundled_models():
            raise CheckpointError(
                f"{arguments.checkpoint} is a bundled model, whose files belong to the installed "
                "package; name a folder to make"
            )
        export_graphs(folder)
        show(folder)
        return 0
    if arguments.output.exists():
        raise CheckpointError(f"{arguments.output}: already exists; name another folder")
    model, config, vocabulary = load_model(folder)
    config = replace(config, decoding=replace(config.decoding, **search))
    validate(config)
    card = arguments.card or folder / CARD
    try:
        text = card.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise CheckpointError(f"{card}: cannot be read ({reason})") from None
    save_model(
        arguments.output,
        model,
        config,
        vocabulary,
        card=text,
        dtype=torch.float16 if arguments.format == "half" else stored_type(folder),
        extra_files=read_extra_files(folder),
    )
    try:
        export_graphs(arguments.output)
    except BaseException:  # Ctrl-C too: the same command again must not find half of its output
        shutil.rmtree(arguments.output, ignore_errors=True)
        raise
    show(arguments.output)
    return 0
