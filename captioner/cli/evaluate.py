"""`captioner evaluate`: caption a split of a data set and score the captions."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.cli import load_captioner, parsing, run_command, show
from captioner.cli.output import add_at_test
from captioner.data.captioned import CaptionedImage, DataFiles
from captioner.errors import ConfigError, DataError
from captioner.evaluation.metrics import PYTHON_TOKENIZER
from captioner.evaluation.results import captions_list, write_json
from captioner.files import check_writable, save_bytes
from captioner.log import logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from captioner.evaluation.evaluate import AttentionSettings, CaptionSet

REPORTED = 6  # photos of a kind in a report
FAITHFULNESS_PHOTOS = 150


def main(argv: list[str] | None = None) -> int:
    return run_command(lambda: _run(_parser().parse_args(argv)))


def _parser() -> argparse.ArgumentParser:
    parser = parsing.CommandParser(
        prog="captioner evaluate",
        description="Caption a split of a data set and score the captions with BLEU, METEOR, "
        "ROUGE-L and CIDEr (pycocoevalcap). Exit code: 0 all done, 1 some photos failed, 2 nothing "
        "could be done.",
    )
    parsing.add_data_options(
        parser, default="test", help="such as test, val, val2017 (default: test)"
    )
    parser.add_argument("--output", type=Path, help="write results.json here")
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write a page with figures and photos here"
    )
    parser.add_argument(
        "--captions",
        type=Path,
        metavar="FILE",
        help="write the captions alone here, as COCO's server takes them, also of photos without "
        "references",
    )
    parser.add_argument(
        "--limit", type=parsing.whole_number, metavar="N", help="only the first N photos"
    )
    parser.add_argument(
        "--train-split", metavar="SPLIT", help="count the captions that are not in this split"
    )
    parser.add_argument(
        "--time-limit",
        type=parsing.number_from(1),
        default=600.0,
        metavar="S",
        help="for the scorers, in seconds (default: 600)",
    )
    parser.add_argument(
        "--bias",
        action="store_true",
        help="show how often man and woman, adult and child, and the colours of clothes are right "
        "where the references agree (English captions; --output always has it)",
    )
    _add_attention_options(parser)
    parsing.add_model_options(parser)
    add_at_test(parser)
    return parser


def _add_attention_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that measure attention."""
    parser.add_argument(
        "--objects",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="COCO's instances_*.json of the photos: does attention lie on the objects named?",
    )
    parser.add_argument(
        "--faithfulness",
        type=parsing.whole_number,
        nargs="?",
        const=FAITHFULNESS_PHOTOS,
        default=0,
        metavar="N",
        help=f"on the first N photos (default: {FAITHFULNESS_PHOTOS}), replace the attention and "
        "delete attended cells: do the words become unlikely?",
    )
    parser.add_argument(
        "--removal",
        choices=("delete", "blur"),
        default="delete",
        help="delete cells from the grid, or blur the photo there (default: delete)",
    )
    parser.add_argument(
        "--regions",
        choices=("masks", "boxes"),
        default="masks",
        help="an object's mask (its box where it has none) or its box (default: masks)",
    )


def _run(arguments: argparse.Namespace) -> int:
    from captioner.data.check import same_caption
    from captioner.data.formats.table import split_counts
    from captioner.data.readers import read_captions, read_split

    files = [file for file in (arguments.output, arguments.report, arguments.captions) if file]
    if len(set(map(os.path.realpath, files))) < len(files):
        raise ConfigError("--output, --report and --captions: name a file of its own for each")
    for file in files:
        check_writable(file)  # before hours of captioning
    data = parsing.chosen_data(arguments)
    split = read_split(split=arguments.split, **data)
    training = arguments.train_split and read_captions(DataFiles(**data), arguments.train_split)
    if arguments.format == "table" and not any(split_counts(Path(arguments.root), arguments.file)):
        logger.warning(
            f"{arguments.root} has no column split, so all of its photos are scored, those that a "
            "model learned from too; name the split of each row"
        )
    images = split.images[: arguments.limit]
    if not images and (arguments.output or arguments.report or not arguments.captions):
        raise DataError(
            f"{arguments.root}: no photo of split {arguments.split!r} has a reference to score "
            "against; give --captions FILE, without --output and --report, to write captions "
            "without scores"
        )
    measured = _attention_settings(images, arguments)
    missing = [] if arguments.limit else split.missing  # with a limit, others replace them
    room = None if arguments.limit is None else arguments.limit - len(images)
    unscored = split.uncaptioned[:room] if arguments.captions else []
    for sentence in replace(split, missing=missing).left_out(arguments.split):
        logger.warning(sentence)
    if repeated := same_caption(images):
        logger.warning(repeated)
    from captioner.evaluation.evaluate import CaptionSet, caption_images

    captioner = load_captioner(parsing.chosen_model(arguments), arguments)
    requested = images + unscored
    captions, failed = caption_images(
        captioner,
        requested,
        beam_size=arguments.beam_size,
        at_test=arguments.at_test,
        on_unreadable=lambda path, error: logger.warning(f"{path}: {error}"),
    )
    if not captions:
        raise DataError(f"{arguments.root}: none of the {len(requested)} photos can be read")
    if arguments.captions:
        texts = {image_id: caption.text for image_id, caption in captions.items()}
        write_json(arguments.captions, captions_list(texts))
    images = [image for image in images if image.image_id in captions]
    if images:
        written = CaptionSet(captioner, images, captions, arguments.beam_size, arguments.at_test)
        _score(arguments, written, training, measured)
    for file in files:
        if images or file == arguments.captions:
            show(str(file))
    return 1 if failed or missing else 0


def _attention_settings(
    images: Sequence[CaptionedImage], arguments: argparse.Namespace
) -> AttentionSettings:
    """Return the measurements of attention that the options ask for."""
    from captioner.evaluation.evaluate import AttentionSettings, object_keys
    from captioner.evaluation.objects import Objects

    objects = None
    if arguments.objects:
        objects = Objects(*arguments.objects)
        files = ", ".join(map(str, arguments.objects))
        verb = "knows" if len(arguments.objects) == 1 else "know"
        known = object_keys(objects, images)
        if not known:
            raise DataError(
                f"{files} {verb} none of the {len(images)} photos, which are found by their names, "
                f"such as {images[0].path.name if images else 'none'}; name the file of these "
                "photos"
            )
        if len(known) < len(images):
            logger.info(
                f"{files} {verb} {len(known)} of the {len(images)} photos; grounding is measured "
                "on these"
            )
    return AttentionSettings(
        objects=objects,
        boxes=arguments.regions == "boxes",
        faithfulness=arguments.faithfulness,
        removal=arguments.removal,
    )


def _score(
    arguments: argparse.Namespace,
    written: CaptionSet,
    training: list[str] | None,
    measured: AttentionSettings,
) -> None:
    """Score the captions; write and show the results."""
    results = written.score(
        training_captions=training,
        objects=measured.objects,
        time_limit_s=arguments.time_limit,
        signature={
            "model": str(parsing.chosen_model(arguments)),
            "precision": arguments.precision,
            "data": f"{arguments.format} {arguments.split}",
        },
    )
    if arguments.output:
        write_json(arguments.output, results)  # what follows may take long, or be stopped
    further = written.measure_attention(measured)
    results |= further
    if arguments.output and further:
        write_json(arguments.output, results)
    if arguments.report:
        _report(arguments.report, results, written)
    _show_results(results, bias=arguments.bias)


def _show_results(results: dict[str, Any], *, bias: bool) -> None:
    """Print the scores, the statistics and the figures of attention."""
    signature, intervals = results["signature"], results["intervals"]
    if signature["tokenizer"] == PYTHON_TOKENIZER:
        logger.warning(
            "scored with the Python tokenizer, whose figures differ a little from published ones"
        )
    for name, value in results["metrics"].items():
        if value is None:
            logger.warning(f"{name}: {signature[name]}")
            show(f"{name:8} not computed")
        else:
            show("{:8} {:.4f}  [{:.4f}, {:.4f}]".format(name, value, *intervals[name]))
    show("")
    for name, number in results["statistics"].items():
        show(f"{name:20} {'not computed' if number is None else f'{number:.4g}'}")
    if calibration := results.get("calibration"):
        auc = calibration["auc"]
        show(
            f"\nconfidence: expected calibration error {calibration['ece']:.3f}, area under the "
            f"curve {'not defined' if auc is None else f'{auc:.3f}'}, right "
            f"{calibration['right']:.1%} of all, "
            f"{calibration['risk_coverage'][4]['right']:.1%} of the surest half"
        )
    if bias:
        from captioner.evaluation.bias import bias_table

        show("\n" + ("\n".join(bias_table(results["bias"])) or "no references agree on people"))
    if lines := _attention_lines(results):
        show("\n" + "\n".join(lines))


def _attention_lines(results: dict[str, Any]) -> list[str]:
    """Return the figures of attention for the terminal; results.json has more."""
    found = []
    for source, grounding in results.get("grounding", {}).items():
        found.append(f"attention on the objects named, {source}: {grounding['num_words']} words")
        for name, key in (("correctness", "correctness"), ("pointing game", "hit")):
            if grounding["num_words"]:
                low, high = grounding["intervals"][key]
                controls = ", ".join(
                    f"{label} {grounding[f'{key}_{kind}']:.3f}"
                    for kind, label in (
                        ("uniform", "uniform"),
                        ("centre", "centre"),
                        ("others", "the caption's other words"),
                    )
                )
                low_gain, high_gain = grounding["intervals"][f"{key}_gain"]
                found.append(
                    f"  {name:14} {grounding[key]:.3f}  [{low:.3f}, {high:.3f}]  ({controls}: "
                    f"{grounding[f'{key}_gain']:+.3f} [{low_gain:+.3f}, {high_gain:+.3f}])"
                )
    attention = results.get("attention", {})
    if attention:
        found.append("loss of log-probability a word, in nats, when attention is replaced:")
        for name, entry in attention.items():
            low, high = entry["interval"]
            line = f"  {name:22} {entry['value']:.3f}  [{low:.3f}, {high:.3f}]"
            if "control" in entry:
                low, high = entry["control_interval"]
                line += f"  (random cells {entry['control']:.3f} [{low:.3f}, {high:.3f}])"
            found.append(line + ("  (a share of the words)" if name == "cell_changes" else ""))
    faithfulness = results.get("faithfulness", {"num_words": 0})
    if faithfulness["num_words"]:
        shares = "".join(f"{share:8.0%}" for share in faithfulness["shares"])
        found += [
            f"fall of a word's log-probability, cells removed:    {shares}",
            *(
                f"  {order:49} " + "".join(f"{fall:8.3f}" for fall in faithfulness[key])
                for order, key in (
                    ("most attended first", "attention"),
                    ("at random", "random"),
                    ("least attended first", "reverse"),
                )
            ),
        ]
    return found


def _report(path: Path, results: dict[str, Any], written: CaptionSet) -> None:
    """Write a page of all figures and the best, the worst and some random photos by CIDEr."""
    import random

    from captioner.data.transforms import open_image
    from captioner.visualization import ReportedImage, report_page

    scores = {entry["image_id"]: entry["scores"] for entry in results["images"]}
    ranked = sorted(written.images, key=lambda image: -scores[image.image_id]["CIDEr"])
    chosen = {
        "Best photos by CIDEr": ranked[:REPORTED],
        "Worst photos by CIDEr": ranked[REPORTED:][-REPORTED:][::-1],
        "Photos at random": random.Random(0).sample(ranked, REPORTED)
        if len(ranked) > REPORTED  # otherwise all of them are shown above
        else [],
    }

    def reported(image: CaptionedImage) -> ReportedImage:
        return ReportedImage(
            name=image.path.name,
            image=open_image(image.path),
            caption=written.captions[image.image_id],
            references=image.captions,
            scores={
                name: scores[image.image_id][name]
                for name in ("CIDEr", "METEOR", "Bleu_4", "SPICE")
                if name in scores[image.image_id]
            },
        )

    signature = results["signature"]
    page = report_page(
        results,
        {heading: list(map(reported, part)) for heading, part in chosen.items() if part},
        title=f"captioner: {signature['model']} on {signature['data']}",
    )
    save_bytes(page.encode(errors="replace"), path)
