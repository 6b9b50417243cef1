"""Fit, on validation photos, the probability that a caption is right: its confidence.

A caption is right if its CIDEr-D against the references reaches --right-from. The calibrator is
written into the model folder as calibrator.json. For several data sets give --format, --root and
--split several times.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.cli import load_captioner, parsing, run_command, show
from captioner.errors import ConfigError, DataError
from captioner.files import check_writable
from captioner.log import logger
from captioner.registry import DATA_FORMATS

if TYPE_CHECKING:
    from captioner.data.captioned import CaptionedImage


def main(argv: list[str] | None = None) -> int:
    parser = parsing.CommandParser("calibrate", __doc__)
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="model folder, or a run")
    help_ = "layout (default: auto, which recognises it)"
    add("--format", choices=("auto", *DATA_FORMATS), action="append", help=help_)
    add("--root", action="append", required=True, metavar="DIR", help="folder of the data set")
    add("--split", action="append", help="validation split (default: val)")
    help_ = "split whose captions give the document frequencies of CIDEr-D (default: train)"
    add("--train-split", default="train", help=help_)
    right, help_ = parsing.number_from(0, 10), "least CIDEr-D, 0 to 10, of a right caption"
    add("--right-from", type=right, default=0.5, metavar="X", help=f"{help_} (default: 0.5)")
    help_ = "only the first N photos of each data set"
    add("--limit", type=parsing.whole_number, metavar="N", help=help_)
    add("--output", type=Path, help="write the report (JSON) here")
    parsing.add_device_options(parser)
    return run_command(lambda: _run(parser.parse_args(argv)))


def _run(arguments: argparse.Namespace) -> int:
    from captioner.checkpoint import add_files, model_folder
    from captioner.data.layouts import CaptionedData, DataFiles
    from captioner.evaluation.calibration import collect, fit
    from captioner.evaluation.results import write_json
    from captioner.generation.confidence import CALIBRATOR

    if arguments.output:
        check_writable(arguments.output)  # before the photos are captioned
    splits = arguments.split or ["val"] * len(arguments.root)
    formats = arguments.format or ["auto"] * len(arguments.root)
    if not len(formats) == len(arguments.root) == len(splits):
        raise ConfigError("--format, --root and --split: give each once for every data set")
    folder = model_folder(arguments.model)
    photos: list[tuple[str, list[CaptionedImage]]] = []
    training: list[CaptionedImage] = []
    for format_, root, split in zip(formats, arguments.root, splits, strict=True):
        data_set = CaptionedData(DataFiles(format_, root))
        found = data_set.split(split)
        for sentence in found.left_out(split):
            logger.warning(sentence)
        if not found.images:
            raise DataError(f"{root}: split {split!r} has no photo with references")
        # The end of the path only: a model folder is given to others.
        name = f"{'/'.join(Path(root).resolve().parts[-2:])} {split}"
        photos.append((name, found.images[: arguments.limit]))
        training += data_set.split(arguments.train_split).images
    captioner = load_captioner(folder, arguments)
    data = [collect(captioner, name, images, training) for name, images in photos]
    calibrator, report = fit(data, right_from=arguments.right_from)
    add_files(folder, {CALIBRATOR: calibrator.to_json()})
    if arguments.output:
        write_json(arguments.output, report)
    show(f"{'':30} photos   right  calibration error  area under the curve")
    for name, row in report.items():
        auc = "not defined" if row["auc"] is None else f"{row['auc']:.3f}"
        figures = f"{row['num_images']:6} {row['right']:7.1%} {row['ece']:18.3f}  {auc}"
        show(f"{name[-30:]:30} {figures}")
    everything = report["all"]
    show(
        f"\nright among the surest half: {everything['risk_coverage'][4]['right']:.1%}; marked as "
        f"unsure below {calibrator.threshold:.2f}: {everything['unsure']:.1%} of all, "
        f"{everything['unsure_right']:.1%} of the right ones"
    )
    show(folder / CALIBRATOR)
    return 0
