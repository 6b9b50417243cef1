"""`captioner evaluate`: score the captions that a model writes for a split, or those of a file."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.cli import load_captioner, parsing, run_command, show
from captioner.cli.output import add_at_test
from captioner.data.captioned import CaptionedImage
from captioner.errors import ConfigError, DataError
from captioner.evaluation.metrics import PYTHON_TOKENIZER
from captioner.evaluation.results import (
    match_captions,
    read_captions,
    write_json,
)
from captioner.evaluation.tables import BIAS, cell_text, result_tables
from captioner.files import check_writable, save_bytes
from captioner.log import logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from captioner.data.layouts import DataFiles
    from captioner.evaluation.evaluate import AttentionSettings
    from captioner.types import Caption

REPORTED = 6  # photos of a kind in a report
FAITHFULNESS_PHOTOS = 150


def main(argv: list[str] | None = None) -> int:
    return run_command(lambda: _run(_parser().parse_args(argv)))


def _parser() -> argparse.ArgumentParser:
    parser = parsing.CommandParser(
        prog="captioner evaluate",
        description="Caption a split of a data set and score the captions with BLEU, METEOR, "
        "ROUGE-L and CIDEr (pycocoevalcap); with --results, score the captions of a file. Exit "
        "code: 0 all done, 1 some photos failed, 2 nothing could be done.",
    )
    parsing.add_data_options(
        parser, default="test", help="such as test, val, val2017 (default: test)"
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help="score the captions in this file, of any model: COCO results, a results.json, a table "
        "of image and caption, or an output of captioner batch; no photo is read",
    )
    parser.add_argument("--output", type=Path, help="write results.json here")
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write a page with figures and photos here"
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


def _run(arguments: argparse.Namespace) -> int:
    for file in filter(None, (arguments.output, arguments.report)):
        check_writable(file)  # before hours of captioning
    return _score_file(arguments) if arguments.results else _caption_and_score(arguments)


def _score_file(arguments: argparse.Namespace) -> int:
    """Score the captions of a file."""
    if arguments.report or arguments.faithfulness or arguments.objects:
        raise ConfigError(
            "--results scores captions without their model: leave out --report, --faithfulness "
            "and --objects"
        )
    results = score_file(
        arguments.results,
        parsing.chosen_data(arguments),
        arguments.split,
        limit=arguments.limit,
        training_captions=_training_captions(arguments),
        time_limit_s=arguments.time_limit,
    )
    if arguments.output:
        write_json(arguments.output, results)
    _show_results(results, bias=arguments.bias)
    if arguments.output:
        show(str(arguments.output))
    return 0


def score_file(
    path: Path, data: DataFiles, split: str, *, limit: int | None = None, **options: Any
) -> dict[str, Any]:
    """Return the results of the captions in a file; `options` are those of `score_texts`."""
    from captioner.data.layouts import CaptionedData
    from captioner.evaluation.evaluate import score_texts

    captions = read_captions(path, split)
    references = CaptionedData(data)
    images = references.references(split)[:limit]
    texts = match_captions(captions, images)
    if not texts:
        example = images[0] if images else None
        raise DataError(
            f"{path}: none of its {len(captions)} captions is of a photo of split {split!r} of "
            f"{data.root}: it names {next(iter(captions))!r}, and the data set "
            f"{f'{example.image_id!r} ({example.path.name})' if example else 'no photo'}; name the "
            "split of these captions"
        )
    if without := [image for image in images if image.image_id not in texts]:
        logger.warning(
            f"{path}: {len(without)} of {len(images)} photos have no caption there, the first is "
            f"{without[0].path.name}; the others are scored"
        )
    if limit is None and len(captions) > len(texts):
        logger.info(
            f"{path}: {len(captions) - len(texts)} of {len(captions)} captions are of other photos"
        )
    scored = [image for image in images if image.image_id in texts]
    texts = {image.image_id: texts[image.image_id] for image in scored}
    signature = {"model": str(path), "data": f"{references.format} {split}"}
    return score_texts(texts, scored, signature=signature, **options)


def _training_captions(arguments: argparse.Namespace) -> list[str] | None:
    from captioner.data.layouts import CaptionedData

    if not arguments.train_split:
        return None
    return CaptionedData(parsing.chosen_data(arguments)).captions(arguments.train_split)


def _caption_and_score(arguments: argparse.Namespace) -> int:
    """Caption the photos of a split; score the captions."""
    from captioner.data.caption_checks import same_caption
    from captioner.data.layouts import CaptionedData

    data = CaptionedData(parsing.chosen_data(arguments))
    split = data.split(arguments.split)
    training = _training_captions(arguments)
    if not data.has_splits and arguments.split not in ("train", "val"):
        logger.warning(
            f"{arguments.root} has no splits, so all of its photos are scored, those that a model "
            "learned from too; --split val scores those that training held out"
        )
    images = split.images[: arguments.limit]
    if not images:
        raise DataError(
            f"{arguments.root}: no photo of split {arguments.split!r} has a reference to score "
            "against; captioner batch writes captions alone"
        )
    attention = _attention_settings(images, arguments)
    missing = [] if arguments.limit else split.missing  # with a limit, others replace them
    for sentence in replace(split, missing=missing).left_out(arguments.split):
        logger.warning(sentence)
    if repeated := same_caption(images):
        logger.warning(repeated)
    from captioner.evaluation.evaluate import evaluate

    captioner = load_captioner(parsing.chosen_model(arguments), arguments)
    decoding = captioner.config.decoding
    logger.info(data.description())
    logger.info(
        f"beam size {arguments.beam_size or decoding.beam_size}, length penalty "
        f"{captioner.options().length_penalty:g}"
    )
    evaluation = evaluate(
        captioner,
        images,
        beam_size=arguments.beam_size,
        at_test=arguments.at_test,
        training_captions=training,
        attention=attention,
        time_limit_s=arguments.time_limit,
        signature={
            "model": str(parsing.chosen_model(arguments)),
            "precision": arguments.precision,
            "data": f"{data.format} {arguments.split}",
        },
    )
    results = evaluation.results
    if arguments.output:
        write_json(arguments.output, results)
    if arguments.report:
        images = [image for image in images if image.image_id in evaluation.captions]
        _report(arguments.report, results, images, evaluation.captions)
    _show_results(results, bias=arguments.bias)
    for file in filter(None, (arguments.output, arguments.report)):
        show(str(file))
    return 1 if evaluation.unreadable or missing else 0


def _attention_settings(
    images: Sequence[CaptionedImage], arguments: argparse.Namespace
) -> AttentionSettings:
    """Return the measurements of attention that the options ask for."""
    from captioner.evaluation.evaluate import AttentionSettings, object_keys
    from captioner.evaluation.objects import Objects

    objects = None
    if arguments.objects:
        objects = Objects(*arguments.objects)
        known = object_keys(objects, images)
        if not known:
            raise DataError(
                f"--objects: none of the {len(images)} photos is in there, found by its name; name "
                "the file of these photos"
            )
        if len(known) < len(images):
            logger.info(
                f"--objects: grounding is measured on {len(known)} of the {len(images)} photos"
            )
    return AttentionSettings(objects, arguments.faithfulness)


def _show_results(results: dict[str, Any], *, bias: bool) -> None:
    """Print the tables of the results."""
    signature = results["signature"]
    if signature["tokenizer"] == PYTHON_TOKENIZER:
        logger.warning(
            "scored with the Python tokenizer, whose figures differ a little from published ones"
        )
    for name, value in results["metrics"].items():
        if value is None:
            logger.warning(f"{name}: {signature[name]}")
            show(f"{name:8} {signature[name].partition(':')[0]}")
        else:
            show("{:8} {:.4f}  [{:.4f}, {:.4f}]".format(name, value, *results["intervals"][name]))
    for table in result_tables(results)[1:]:
        if bias or table.title != BIAS:
            show("\n".join(["", table.title, *(f"  {line}" for line in table.lines())]))


def _report(
    path: Path,
    results: dict[str, Any],
    images: Sequence[CaptionedImage],
    captions: Mapping[int | str, Caption],
) -> None:
    """Write a page of all figures and the best, the worst and some random photos by CIDEr."""
    import random

    from captioner.data.transforms import open_image
    from captioner.visualization import ReportedImage, report_page

    scores = {entry["image_id"]: entry["scores"] for entry in results["images"]}
    ranked = sorted(images, key=lambda image: -scores[image.image_id].get("CIDEr", 0.0))
    chosen = {
        "Best photos by CIDEr": ranked[:REPORTED],
        "Worst photos by CIDEr": ranked[REPORTED:][-REPORTED:][::-1],
    }
    if len(ranked) > REPORTED:  # otherwise all of them are shown above
        chosen["Photos at random"] = random.Random(0).sample(ranked, REPORTED)

    def reported(image: CaptionedImage) -> ReportedImage:
        names = ("CIDEr", "METEOR", "Bleu_4")
        found = scores[image.image_id]
        return ReportedImage(
            name=image.path.name,
            image=open_image(image.path),
            caption=captions[image.image_id],
            references=image.captions,
            scores={name: found[name] for name in names if name in found},
        )

    signature = results["signature"]
    tables = [
        (table.title, table.head, [list(map(cell_text, row)) for row in table.rows])
        for table in result_tables(results)
    ]
    computed = [[name, str(value)] for name, value in signature.items()]
    page = report_page(
        [*tables, ("How this was computed", ["", ""], computed)],
        {heading: list(map(reported, part)) for heading, part in chosen.items() if part},
        title=f"captioner: {signature['model']} on {signature['data']}",
    )
    save_bytes(page.encode(errors="replace"), path)
