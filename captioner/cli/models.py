"""Commands on trained models: average them, fit their confidence, copy them to share."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from captioner.checkpoint import CARD, MODELS, load_model, model_folder, read_weights
from captioner.checkpoint_writer import add_files, check_absent, read_extra_files, save_model
from captioner.cli import command, load_captioner, parsing, show
from captioner.config.validation import validate
from captioner.data.layouts import CaptionedData, DataFiles
from captioner.data.splits import CaptionedImage
from captioner.errors import CheckpointError, ConfigError, DataError
from captioner.evaluation.results import write_json
from captioner.files import check_writable
from captioner.generation.confidence import CALIBRATOR
from captioner.log import logger
from captioner.registry import DATA_FORMATS
from captioner.runtime.device import require_torch


@command
def average(parser: parsing.CommandParser) -> int:
    """Average the weights of models that were fine-tuned from the same model.

    Such model soups (Wortsman et al., 2022) are often better than each model, at the cost of one:
    evaluate the result. Models that began with different weights are refused. Soft and hard
    attention may be mixed: the average has the first model's way of attending, and its photo size.
    """
    help_ = "two or more runs, model folders or names of bundled models"
    parser.add_argument("models", nargs="+", help=help_)
    parser.add_argument("output", type=Path, help="folder to make; it must not exist")
    arguments = parser.parse()

    from captioner.training.pretrained import average_models

    check_absent(arguments.output)
    model, config, vocabulary = average_models(arguments.models)
    lines = "".join(f"- `{path}`\n" for path in arguments.models)
    card = f"# A captioner model\n\nThe average of the weights of\n\n{lines}"
    save_model(arguments.output, model, config, vocabulary, card=card)
    logger.info(
        "the average has neither a calibrator nor graphs: captioner calibrate fits its confidence, "
        f"captioner export {arguments.output} --format onnx adds the graphs"
    )
    show(arguments.output)
    return 0


@command
def calibrate(parser: parsing.CommandParser) -> int:
    """Fit, on validation photos, the probability that a caption is right: its confidence.

    A caption is right if its CIDEr-D against the references reaches --right-from. The calibrator is
    written into the model folder as calibrator.json. For several data sets give --format, --root
    and --split several times.
    """
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="model folder, or a run")
    help_ = "layout (default: auto, which recognises it)"
    add("--format", choices=("auto", *DATA_FORMATS), action="append", help=help_)
    add("--root", action="append", required=True, metavar="DIR", help="folder of the data set")
    add("--split", action="append", help="validation split (default: val)")
    help_ = "split that gives CIDEr-D its document frequencies, and photos to learn from"
    add("--train-split", default="train", help=f"{help_} (default: train)")
    right, help_ = parsing.number_from(0, 10), "least CIDEr-D, 0 to 10, of a right caption"
    add("--right-from", type=right, default=0.5, metavar="X", help=f"{help_} (default: 0.5)")
    help_ = "only the first N photos of each data set"
    add("--limit", type=parsing.whole_number, metavar="N", help=help_)
    add("--output", type=Path, help="write the report (JSON) here")
    parsing.add_device_options(parser)
    arguments = parser.parse()

    from captioner.evaluation import calibration

    if arguments.output:
        check_writable(arguments.output)  # before the photos are captioned
    splits = arguments.split or ["val"] * len(arguments.root)
    formats = arguments.format or ["auto"] * len(arguments.root)
    if not len(formats) == len(arguments.root) == len(splits):
        raise ConfigError("--format, --root and --split: give each once for every data set")
    folder = _folder_to_change(arguments.model)
    photos: list[tuple[str, list[CaptionedImage]]] = []
    training: list[CaptionedImage] = []
    for format_, root, split in zip(formats, arguments.root, splits, strict=True):
        data_set = CaptionedData(DataFiles(format_, root), val_split=split)
        found = data_set.split_to_score(split)
        for sentence in found.left_out(split):
            logger.warning(sentence)
        if not found.images:
            raise DataError(f"{root}: split {split!r} has no photo with references")
        # The end of the path only: a model folder is given to others.
        name = f"{'/'.join(Path(root).resolve().parts[-2:])} {split}"
        photos.append((name, found.images[: arguments.limit]))
        training += data_set.split(arguments.train_split).images
    # Their own scores must not reach the calibrator by way of the training photos.
    seen = {image.path for _, images in photos for image in images}
    training = [image for image in training if image.path not in seen]
    captioner = load_captioner(folder, arguments)
    calibrator, report = calibration.calibrate(
        captioner, photos, training, right_from=arguments.right_from
    )
    add_files(folder, calibrator.to_files())
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


@command
def export(parser: parsing.CommandParser) -> int:
    """Copy a trained model into a folder of its own with half-precision weights, half the size.

    captioner computes with them in single precision. With --format onnx the weights stay as they
    are. Both formats hold ONNX graphs, with which captioner captions on a CPU without PyTorch.
    """
    add = parser.add_argument
    add("checkpoint", help="a run, a model folder, or a bundled model's name")
    help_ = "folder to make; without it, --format onnx adds the graphs to the checkpoint's own"
    add("output", type=parsing.folder, nargs="?", help=help_)
    help_ = "half: weights in half precision; onnx: the model's own weights (default: half)"
    add("--format", choices=["half", "onnx"], default="half", help=help_)
    add("--card", type=Path, metavar="FILE", help="model card (default: the checkpoint's)")
    group = parser.add_argument_group("search settings to store (default: the checkpoint's)")
    group.add_argument("--beam-size", type=int, metavar="K", help="hypotheses kept; 1 is greedy")
    parsing.add_search_options(group)
    help_ = "no sequence of N words comes twice in a caption; 0 allows all"
    group.add_argument("--no-repeat-ngram", type=int, metavar="N", help=help_)
    arguments = parser.parse()
    output = arguments.output
    if output is None and arguments.format != "onnx":
        parser.error("name the folder to make, or give --format onnx to add graphs in place")
    search = parsing.given(arguments, "beam_size", "max_words", "length_penalty", "no_repeat_ngram")
    if output is None and (arguments.card or search):
        parser.error("search settings and --card need a folder to make, in which they are stored")
    require_torch("export")

    import torch

    from captioner.export import export_graphs

    if output is None:
        folder = _folder_to_change(arguments.checkpoint)
        export_graphs(folder)
        show(folder)
        return 0
    folder = model_folder(arguments.checkpoint)
    check_absent(output)
    model, config, vocabulary = load_model(folder)
    config = replace(config, decoding=replace(config.decoding, **search))
    validate(config)
    card = arguments.card or folder / CARD
    try:
        text = card.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{card}: cannot be read ({error})") from None
    dtype = torch.float16
    if arguments.format == "onnx":  # as they are
        kinds = (weight.dtype for weight in read_weights(folder).values())
        dtype = next(kind for kind in kinds if kind.is_floating_point)
    extra = read_extra_files(folder)
    save_model(output, model, config, vocabulary, card=text, dtype=dtype, extra_files=extra)
    try:
        export_graphs(output)
    except BaseException:  # Ctrl-C too: the same command again must not find half of its output
        shutil.rmtree(output, ignore_errors=True)
        raise
    show(output)
    return 0


def _folder_to_change(model: str | Path) -> Path:
    folder = model_folder(model)
    if folder.resolve().is_relative_to(MODELS.resolve()):
        raise CheckpointError(
            f"{model} is a bundled model, whose files belong to the installed package; "
            f"captioner export {model} DIR makes a copy"
        )
    return folder
