"""Draw a run's curves: losses, rates, metrics, entropy of attention."""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path
from typing import Any

from captioner.cli import parsing, run_command, show
from captioner.errors import CheckpointError
from captioner.log import logger

KINDS = ("png", "pdf", "svg")


def main(argv: list[str] | None = None) -> int:
    parser = parsing.CommandParser("plot", __doc__)
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run folder")
    add("--output", type=parsing.folder, metavar="DIR", help="where to draw (default: RUN/plots)")
    kinds = parsing.names_of((*KINDS, "gif", "all"))
    help_ = "kinds to save, separated by commas: png, pdf, svg, or all (default: png)"
    add("--save", type=kinds, default=("png",), metavar="KINDS", help=help_)
    arguments = parser.parse_args(argv)
    if "gif" in arguments.save:
        logger.warning("--save gif is gone: TensorBoard shows the attention of each epoch")
    return run_command(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from captioner.visualization.curves import save_curves

    entries = read_metrics(arguments.run)
    output = arguments.output or arguments.run / "plots"
    curves = [output / f"curves.{kind}" for kind in KINDS if {kind, "all"} & {*arguments.save}]
    save_curves(entries, curves, title=arguments.run.resolve().name)
    for path in curves:
        show(path)
    return 0


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Read the entries of a run's metrics.jsonl, without a last line that is being written.

    Raises:
        CheckpointError: There are none.
    """
    path = run / "metrics.jsonl"
    entries = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise CheckpointError(f"{path}: cannot be read ({reason})") from None
    for line in lines:
        with contextlib.suppress(ValueError):  # the last line may be cut short
            entries.append(json.loads(line))
    if not entries:
        raise CheckpointError(
            f"{path}: has no entries; name the folder of a training run that has logged some"
        )
    return entries
