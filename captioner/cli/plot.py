"""`captioner plot`: the curves of a run, and its attention epoch by epoch."""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from captioner.cli import parsing, run_command, show
from captioner.errors import CheckpointError, ImageError
from captioner.log import logger

CURVE_KINDS = ("png", "pdf", "svg")


def main(argv: list[str] | None = None) -> int:
    parser = parsing.CommandParser(
        prog="captioner plot",
        description="Draw a run's curves (losses, rates, metrics, entropy of attention), and for "
        "each of its sample photos a GIF of the caption and its attention, epoch by epoch.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="where to draw (default: RUN/plots)"
    )
    parser.add_argument(
        "--save",
        type=parsing.names_of((*CURVE_KINDS, "gif", "all")),
        default=("png", "gif"),
        metavar="KINDS",
        help="kinds to save, separated by commas: png, pdf, svg (curves), gif (growth), or all "
        "(default: png,gif)",
    )
    arguments = parser.parse_args(argv)
    arguments.kinds = (*CURVE_KINDS, "gif") if "all" in arguments.save else arguments.save
    if problem := parsing.not_a_folder(arguments.output):
        parser.error(f"argument --output: {problem}")
    return run_command(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from captioner.files import save_bytes
    from captioner.visualization import growth_gif
    from captioner.visualization.curves import save_curves

    entries = read_metrics(arguments.run)
    output = arguments.output or arguments.run / "plots"
    curves = [output / f"curves.{kind}" for kind in arguments.kinds if kind != "gif"]
    if curves:
        save_curves(entries, curves, title=arguments.run.resolve().name)
        for path in curves:
            show(str(path))
    if "gif" in arguments.kinds:
        folders = sorted(path for path in (arguments.run / "samples").glob("*") if path.is_dir())
        for folder in folders:
            image, captions = read_samples(folder)
            file = output / f"growth-{folder.name}.gif"
            save_bytes(growth_gif(image, captions), file)
            show(str(file))
        if not folders:
            logger.warning(
                f"{arguments.run}: keeps no maps of sample photos (train.samples is 0, or an older "
                "captioner trained it), so there is no growth of attention to draw"
            )
    return 0


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Read the entries of a run's metrics.jsonl, without a last line that is being written.

    Raises:
        CheckpointError: There are none.
    """
    path = run / "metrics.jsonl"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error.strerror}); name the folder of a training run"
        ) from None
    entries = []
    for line in lines:
        with contextlib.suppress(ValueError):  # the last line may be cut short
            entries.append(json.loads(line))
    if not entries:
        raise CheckpointError(f"{path}: has no entries yet; wait until the run has logged some")
    return entries


def read_samples(folder: Path) -> tuple[Any, list[tuple[str, Any]]]:
    """Read a sample image of a run, and the names and captions of its epochs.

    Raises:
        CheckpointError: The files of the run are damaged.
    """
    from captioner.data.transforms import open_image
    from captioner.visualization import caption_from_arrays

    captions = []
    try:
        image = open_image(folder / "photo.jpg")
        for file in sorted(folder.glob("epoch-*.npz")):
            with np.load(file) as arrays:
                epoch = int(file.stem.removeprefix("epoch-"))
                captions.append((f"epoch {epoch}", caption_from_arrays(dict(arrays))))
    # np.load raises errors of several kinds on a file that is cut short.
    except (ImageError, OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise CheckpointError(f"{folder}: is damaged ({error}); take it away") from None
    if not captions:
        raise CheckpointError(f"{folder}: has no maps of any epoch; take it away")
    return image, captions
