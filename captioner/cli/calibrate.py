"""`captioner calibrate`: fit the calibrator that gives a model's captions their confidence."""

from __future__ import annotations

import argparse
from pathlib import Path

from captioner.cli import load_captioner, parsing, run_command, show
from captioner.errors import ConfigError, DataError
from captioner.files import check_writable
from captioner.log import logger
from captioner.registry import DATA_FORMATS


def main(argv: list[str] | None = None) -> int:
    parser = parsing.CommandParser(
        prog="captioner calibrate",
        description="Fit, on validation photos, the probability that a caption is right (its "
        "CIDEr-D against the references reaches --right-from), and write it into the model folder "
        "as calibrator.json. For several data sets give --format, --root and --split several "
        "times. Exit code: 0 done, 2 nothing could be done.",
    )
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="model folder, or a run")
    add(
        "--format",
        choices=("auto", *DATA_FORMATS),
        action="append",
        help="layout (default: auto, which recognises it)",
    )
    add("--root", action="append", required=True, metavar="DIR", help="folder of the data set")
    add("--split", action="append", help="validation split (default: val)")
    add(
        "--train-split",
        default="train",
        help="split whose captions give the document frequencies of CIDEr-D (default: train)",
    )
    add(
        "--right-from",
        type=parsing.number_from(0, 10),
        default=0.5,
        metavar="X",
        help="CIDEr-D, from 0 to 10, from which a caption is right (default: 0.5)",
    )
    add(
        "--limit",
        type=parsing.whole_number,
        metavar="N",
        help="only the first N photos of each data set",
    )
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
    images, training = [], []
    for format_, root, split in zip(formats, arguments.root, splits, strict=True):
        data_set = CaptionedData(DataFiles(format_, root))
        found = data_set.split(split)
        for sentence in found.left_out(split):
            logger.warning(sentence)
        images.append(found.images[: arguments.limit])
        if not images[-1]:
            raise DataError(f"{root}: split {split!r} has no photo with references")
        training += data_set.split(arguments.train_split).images
    captioner = load_captioner(folder, arguments)
    # Names with the ends of the paths only: a model folder is given to others.
    ends = ["/".join(Path(root).resolve().parts[-2:]) for root in arguments.root]
    data = [
        collect(captioner, f"{end} {split}", part, training)
        for end, split, part in zip(ends, splits, images, strict=True)
    ]
    calibrator, report = fit(data, right_from=arguments.right_from)
    add_files(folder, {CALIBRATOR: calibrator.to_json()})
    if arguments.output:
        write_json(arguments.output, report)
    show(f"{'':30} photos   right  calibration error  area under the curve")
    for name, row in report.items():
        auc = row["auc"]
        show(
            f"{name[-30:]:30} {row['num_images']:6} {row['right']:7.1%} {row['ece']:18.3f}  "
            f"{'not defined' if auc is None else f'{auc:.3f}'}"
        )
    everything = report["all"]
    show(
        f"\nright among the surest half: {everything['risk_coverage'][4]['right']:.1%}; marked as "
        f"unsure below {calibrator.threshold:.2f}: {everything['unsure']:.1%} of all, "
        f"{everything['unsure_right']:.1%} of the right ones"
    )
    show(str(folder / CALIBRATOR))
    return 0
