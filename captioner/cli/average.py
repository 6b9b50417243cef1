"""Average the weights of models that were fine-tuned from the same model.

Such model soups (Wortsman et al., 2022) are often better than each model, at the cost of one:
evaluate the result. Models that began with different weights are refused. Soft and hard attention
may be mixed: the average has the first model's way of attending, and its photo size.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from captioner.cli import parsing, run_command, show
from captioner.errors import CheckpointError


def main(argv: list[str] | None = None) -> int:
    parser = parsing.CommandParser("average", __doc__)
    help_ = "two or more runs, model folders or names of bundled models"
    parser.add_argument("models", nargs="+", help=help_)
    parser.add_argument("output", type=Path, help="folder to make; it must not exist")
    return run_command(lambda: _run(parser.parse_args(argv)))


def _run(arguments: argparse.Namespace) -> int:
    from captioner.checkpoint import save_model
    from captioner.evaluation.average import average_models

    if os.path.exists(arguments.output):  # Path.exists raises for a name that no file can have
        raise CheckpointError(f"{arguments.output}: already exists; name another folder")
    model, config, vocabulary = average_models(arguments.models)
    lines = "".join(f"- `{path}`\n" for path in arguments.models)
    card = f"# A captioner model\n\nThe average of the weights of\n\n{lines}"
    save_model(arguments.output, model, config, vocabulary, card=card)
    show(arguments.output)
    return 0
