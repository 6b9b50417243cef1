"""Commands that score captions and compare scores."""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from captioner import cli
from captioner.cli import parsing
from captioner.cli.check_data import add_layout_options, chosen_data
from captioner.data.checks import same_caption
from captioner.data.images import open_image
from captioner.data.layouts import CaptionedData, DataFiles
from captioner.data.splits import CaptionedImage
from captioner.errors import CaptionerError, ConfigError, DataError, ImageError
from captioner.evaluation import results as results_file
from captioner.evaluation.intervals import FEW_PHOTOS, ImageScores, paired_bootstrap
from captioner.files import check_writable, save_bytes
from captioner.log import logger, printable

if TYPE_CHECKING:
    from captioner.evaluation.evaluate import Evaluation

REPORTED = 6  # photos of a kind in a report
FAITHFULNESS_PHOTOS = 150
# Parts of the signature that must be equal for scores to be comparable; others may differ.
SAME = ("tokenizer", "Bleu", "METEOR", "ROUGE_L", "CIDEr")


@cli.command
def evaluate(parser: parsing.CommandParser) -> int:
    """Caption a split of a data set and score the captions, or score the captions of a file.

    The scores are BLEU, METEOR, ROUGE-L and CIDEr (pycocoevalcap).
    Exit code: 0 all done, 1 some photos failed, 2 nothing could be done.
    """
    add = parser.add_argument
    add_data_options(parser, default="test", help="such as test, val, val2017 (default: test)")
    help_ = "score captions of any model: COCO results, results.json, a table, an output of batch"
    add("--results", type=Path, metavar="FILE", help=help_)
    add("--output", type=Path, help="write results.json here")
    help_ = "write a page (.html) with figures and photos here"
    add("--report", type=Path, metavar="FILE", help=help_)
    add("--limit", type=parsing.whole_number, metavar="N", help="only the first N photos")
    add("--train-split", metavar="SPLIT", help="count the captions that are not in this split")
    seconds, help_ = parsing.number_from(1), "for the scorers, in seconds (default: 600)"
    add("--time-limit", type=seconds, default=600.0, metavar="S", help=help_)
    help_ = "show how often man, woman, child and colours of clothes are right (in English)"
    add("--bias", action="store_true", help=help_)
    help_ = "COCO's instances_*.json of the photos: does attention lie on the objects named?"
    add("--objects", type=Path, nargs="+", metavar="FILE", help=help_)
    count: dict[str, Any] = {"type": parsing.whole_number, "nargs": "?", "default": 0}
    help_ = "measure on the first N photos how much less likely words become when the attention "
    help_ += f"is replaced, or attended cells are deleted (default: {FAITHFULNESS_PHOTOS})"
    add("--faithfulness", const=FAITHFULNESS_PHOTOS, metavar="N", help=help_, **count)
    parsing.add_model_options(parser)
    parsing.add_at_test(parser)
    arguments = parser.parse()

    if arguments.report and arguments.report.suffix.lower() not in ("", ".html", ".htm"):
        parser.error(f"argument --report: {arguments.report} does not end in .html")
    written = [file for file in (arguments.output, arguments.report) if file]
    for file in written:
        check_writable(file)  # before hours of captioning
    of_model = parsing.given(arguments, "report", "objects", "checkpoint", "beam_size")
    if arguments.results and (of_model or arguments.faithfulness):
        raise ConfigError(
            "--results scores captions without their model: leave out --report, --faithfulness, "
            "--objects, --checkpoint and --beam-size"
        )
    data = chosen_data(arguments)
    training = None
    if arguments.train_split:
        known = CaptionedData(data, val_split=arguments.split).references(arguments.train_split)
        training = [text for image in known for text in image.captions]
    options = {"training_captions": training, "time_limit_s": arguments.time_limit}
    code = 0
    if arguments.results:
        split, limit = arguments.split, arguments.limit
        results = score_file(arguments.results, data, split, limit=limit, **options)
    else:
        evaluation, images, code = _caption_split(CaptionedData(data), arguments, options)
        results = evaluation.results
    if arguments.output:
        results_file.write_json(arguments.output, results)
    if arguments.report:
        _report(arguments.report, evaluation, images)
    _show_results(results, bias=arguments.bias)
    for file in written:
        cli.show(file)
    return code


def add_data_options(
    parser: argparse.ArgumentParser, *, required: bool = True, **split: Any
) -> None:
    """Add the options that choose a data set; `split` describes `--split`."""
    help_ = "folder of the data set, or its captions file"
    parser.add_argument("--root", required=required, metavar="DIR", help=help_)
    parser.add_argument("--split", **split)
    add_layout_options(parser)


def score_file(
    path: Path, data: DataFiles, split: str, *, limit: int | None = None, **options: Any
) -> dict[str, Any]:
    """Return the results of the captions in a file; `options` are those of `score_texts`."""
    from captioner.evaluation.evaluate import score_texts

    captions = results_file.read_captions(path, split, data)
    references = CaptionedData(data)
    images = references.references(split)[:limit]
    texts = results_file.match_captions(captions, images)
    scored = [image for image in images if image.image_id in texts]
    if not scored:
        example = f"{images[0].image_id!r} ({images[0].path.name})" if images else "no photo"
        raise DataError(
            f"{path}: none of its {len(captions)} captions is of a photo of split {split!r} of "
            f"{data.root}: it names {next(iter(captions))!r}, and the data set {example}; name "
            "the split of these captions"
        )
    if without := [image.path.name for image in images if image.image_id not in texts]:
        logger.warning(
            f"{path}: {len(without)} of {len(images)} photos have no caption there, the first is "
            f"{without[0]}; the others are scored"
        )
    if limit is None and (others := len(captions) - len(texts)) > 0:
        logger.info(f"{path}: {others} of {len(captions)} captions are of other photos")
    texts = {image.image_id: texts[image.image_id] for image in scored}
    signature = {"model": str(path), "data": f"{references.format} {split}"}
    return score_texts(texts, scored, signature=signature, **options)


def _caption_split(
    data: CaptionedData, arguments: argparse.Namespace, options: Mapping[str, Any]
) -> tuple[Evaluation, list[CaptionedImage], int]:
    """Caption the photos of a split and score them; return the photos and the exit code, too."""
    from captioner.evaluation.evaluate import evaluate
    from captioner.evaluation.grounding import Objects

    split = data.split_to_score(arguments.split)
    images = split.images[: arguments.limit]
    if not images:
        raise DataError(
            f"{arguments.root}: no photo of split {arguments.split!r} has a reference to score "
            "against; captioner batch writes captions alone"
        )
    objects = Objects(*arguments.objects) if arguments.objects else None
    known = sum(objects is not None and objects.image(i.path) is not None for i in images)
    if objects and not known:
        raise DataError(
            f"--objects: none of the {len(images)} photos is in there, found by its name; name "
            "the file of these photos"
        )
    if objects and known < len(images):
        logger.info(f"--objects: grounding is measured on {known} of the {len(images)} photos")
    missing = [] if arguments.limit else split.missing  # with a limit, others replace them
    for sentence in replace(split, missing=missing).left_out(arguments.split):
        logger.warning(sentence)
    if repeated := same_caption(images):
        logger.warning(repeated)
    model = parsing.chosen_model(arguments)
    captioner = cli.load_captioner(model, arguments)
    decoding = captioner.options(beam_size=arguments.beam_size)
    logger.info(data.description())
    logger.info(f"beam size {decoding.beam_size}, length penalty {decoding.length_penalty:g}")
    evaluation = evaluate(
        captioner,
        images,
        beam_size=arguments.beam_size,
        at_test=arguments.at_test,
        objects=objects,
        faithfulness=arguments.faithfulness,
        signature={
            "model": str(model),
            "precision": arguments.precision,
            "data": f"{data.format} {arguments.split}",
        },
        **options,
    )
    return evaluation, images, 1 if missing or len(evaluation.captions) < len(images) else 0


def _show_results(results: dict[str, Any], *, bias: bool) -> None:
    from captioner.evaluation.metrics import PYTHON_TOKENIZER

    signature = results["signature"]
    if signature["tokenizer"] == PYTHON_TOKENIZER:
        logger.warning(
            "scored with the Python tokenizer, whose figures differ a little from published ones"
        )
    for name, value in results["metrics"].items():
        if value is None:
            logger.warning(f"{name}: {signature[name]}")
            cli.show(f"{name:8} {signature[name].partition(':')[0]}")
        else:
            low, high = results["intervals"][name]
            cli.show(f"{name:8} {value:.4f}  [{low:.4f}, {high:.4f}]")
    for table in results_file.result_tables(results)[1:]:
        if bias or table.title != results_file.BIAS:
            cli.show("\n".join(["", table.title, *(f"  {line}" for line in table.lines())]))


def _report(file: Path, evaluation: Evaluation, images: Sequence[CaptionedImage]) -> None:
    """Write a page of all figures and the best, the worst and some random photos by CIDEr."""
    from captioner.visualization.page import report_example, report_page

    results, captions = evaluation.results, evaluation.captions
    scores = {entry["image_id"]: entry["scores"] for entry in results["images"]}
    captioned = [image for image in images if image.image_id in captions]
    ranked = sorted(captioned, key=lambda image: -scores[image.image_id].get("CIDEr", 0.0))
    chosen = {
        "Best photos by CIDEr": ranked[:REPORTED],
        "Worst photos by CIDEr": ranked[REPORTED:][-REPORTED:][::-1],
    }
    if len(ranked) > REPORTED:  # otherwise all of them are shown above
        chosen["Photos at random"] = random.Random(0).sample(ranked, REPORTED)

    def example(image: CaptionedImage) -> str:
        found = scores[image.image_id]
        shown = {name: found[name] for name in ("CIDEr", "METEOR", "Bleu_4") if name in found}
        photo, caption = open_image(image.path), captions[image.image_id]
        return report_example(image.path.name, photo, caption, image.captions, shown)

    signature = results["signature"]
    tables = [
        (table.title, table.head, [list(map(results_file.cell_text, row)) for row in table.rows])
        for table in results_file.result_tables(results)
    ]
    computed = [[name, str(value)] for name, value in signature.items()]
    page = report_page(
        [*tables, ("How this was computed", ["", ""], computed)],
        {heading: list(map(example, part)) for heading, part in chosen.items() if part},
        title=f"captioner: {signature['model']} on {signature['data']}",
    )
    save_bytes(page.encode(errors="replace"), file)


@cli.command
def compare(parser: parsing.CommandParser) -> int:
    """Compare two results files of captioner evaluate on the same photos.

    Shows every metric of both, B - A with its 95 % interval, and p by the paired bootstrap over
    photos (Koehn 2004). Files that hold captions alone, such as COCO results of another program,
    are scored first, against the references that --root and --split name.
    """
    parser.add_argument("a", type=Path, metavar="A", help="results.json or captions of one model")
    parser.add_argument("b", type=Path, metavar="B", help="those of another")
    help_ = "of the references (default: test)"
    add_data_options(parser, required=False, default="test", help=help_)
    arguments = parser.parse()

    a, b = arguments.a, arguments.b
    (signature_a, scores_a), (signature_b, scores_b) = (_scores(path, arguments) for path in (a, b))
    photos_a, photos_b = signature_a.get("photos"), signature_b.get("photos")
    for part in SAME if photos_a and photos_b else (*SAME, "data"):
        if signature_a.get(part) != signature_b.get(part):
            logger.warning(
                f"{part} differs: {signature_a.get(part)} in {a}, {signature_b.get(part)} in {b}; "
                "what they score is not quite the same"
            )
    same_images = set(scores_a.image_ids) == set(scores_b.image_ids)
    if same_images and photos_a != photos_b and None not in (photos_a, photos_b):
        raise DataError(
            f"{a} and {b} are not of the same photos and references; evaluate both models on the "
            "same split"
        )
    found, count = paired_bootstrap(scores_a, scores_b), len(scores_a.image_ids)
    few = ", too few to tell two models apart" if count < FEW_PHOTOS else ""
    cli.show(f"A {a}\nB {b}\n{count} photos{few}\n")
    cli.show(f"{'':8}  {'A':>7}  {'B':>7}  {'B - A':>8}  {'95 % interval':^20}  {'p':>7}")
    for name, row in found.items():
        interval = f"[{row.low:+.4f}, {row.high:+.4f}]"
        figures = f"{row.a:7.4f}  {row.b:7.4f}  {row.difference:+8.4f}  {interval:^20}"
        cli.show(f"{name:8}  {figures}  {row.p:7.4f}")
    return 0


def _scores(path: Path, arguments: argparse.Namespace) -> tuple[dict[str, Any], ImageScores]:
    """Return the signature and the scores of a file, scored anew if references are named."""
    if path.is_dir() and not (path / "parts").is_dir():
        raise DataError(
            f"{path} is a folder without captions; compare files, as captioner evaluate "
            f"--checkpoint {path} --output FILE writes them"
        )
    if arguments.root is not None:
        content = score_file(path, chosen_data(arguments), arguments.split)
        return content["signature"], ImageScores.of(content["images"])
    return results_file.read_results(path)


@cli.command
def score(parser: parsing.CommandParser) -> int:
    """Score a caption that you give: the model's attention for each word, and how likely each is.

    The caption that the model writes itself is shown below it.
    Exit code: 0 all done, 1 some photos failed, 2 nothing could be done.
    """
    parser.add_argument("photo", metavar="PHOTO", help="a photo")
    help_ = "its caption; with or without quotes"
    parser.add_argument("text", metavar="CAPTION", nargs="+", help=help_)
    parsing.add_model_options(parser, search=False)
    parsing.add_output_options(parser)
    parser.set_defaults(compare=None, write=())  # as `captioner caption` has them
    arguments = parser.parse()
    if len(arguments.text) > 1 and any(" " in text for text in arguments.text):
        parser.error("argument CAPTION: is one caption; score another with a command of its own")
    arguments.text = " ".join(arguments.text)
    parsing.check_output_options(parser, arguments)

    photo = Path(arguments.photo)
    try:
        image = open_image(photo)
    except ImageError as error:
        raise CaptionerError(f"{arguments.photo}: {error}") from None
    model = parsing.chosen_model(arguments)
    captioner = cli.load_captioner(model, arguments)
    (options,) = cli.attention_options(arguments, [captioner])
    caption = captioner.score(image, arguments.text, **options)
    own = captioner.caption(image, **options)
    if unknown := [word for word in caption.words if word not in captioner.vocabulary]:
        logger.info(f"read as unknown words: {', '.join(unknown)}")
    drawn = [f"{word} (unknown)" if word in unknown else word for word in caption.words]
    captions = [(str(model), replace(caption, words=drawn))]
    pictures: list[Path] = []
    problem = None
    if arguments.output is not None:
        from captioner.cli.output_folder import OutputFolder, save_pictures

        # With the caption in the name, pictures of the photo's other captions stay.
        words = re.sub(r"\W+", "-", arguments.text.lower()).strip("-")
        if len(words) > 40:  # others may begin alike
            words = f"{words[:31]}-{crc32(words.encode(errors='replace')):08x}"
        named = photo.with_name(f"{photo.stem}.{words}{photo.suffix}")
        folder = OutputFolder(arguments, [named], settings="score")
        folder.begin()
        name = folder.names[named]
        pictures, problem = save_pictures(name, photo.name, image, captions, arguments)
        folder.add(named, {"caption": caption.text, "confidence": caption.confidence}, pictures)
    if problem:
        logger.warning(f"{photo}: {problem}")
    if arguments.json:
        shown = caption.of_head(arguments.layer, arguments.head)
        line = {"image": str(photo), **cli.caption_content(shown, with_total=True)}
        line["model_caption"] = cli.caption_content(own, with_total=True)
        if pictures:
            line["pictures"] = [str(picture) for picture in pictures]
        cli.show(json.dumps(line))
    else:
        note = partial(cli.caption_note, with_total=True)
        cli.show(f"{printable(photo)}: {note(caption)}{cli.files_note(pictures)}")
        cli.show(f"  the model's own: {note(own)}")
    return 1 if problem else 0
