"""`captioner evaluate`: caption a split of a data set and score the captions."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from captioner.cli import (
    add_model_options,
    chosen_model,
    load_captioner,
    looking,
    run_command,
    show,
    whole_number,
)
from captioner.cli.output import add_at_test, samples_cells
from captioner.cli.photos import opened
from captioner.data.captioned import CaptionedImage
from captioner.data.readers import FORMATS, read_captions, read_split
from captioner.errors import DataError, ImageError
from captioner.evaluation.metrics import PYTHON_TOKENIZER
from captioner.evaluation.results import captions_list, digest_of, results_of, write_json
from captioner.files import check_writable, save_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from PIL import Image

    from captioner.captioner import Captioner
    from captioner.models.attention.select import AtTest
    from captioner.types import Caption

REPORTED = 6  # photos of a kind in a report
NAMED = 10  # missing photos that are named one by one


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    return run_command(lambda: _run(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="captioner evaluate",
        description="Caption a split of a data set and score the captions with BLEU, METEOR, "
        "ROUGE-L and CIDEr (pycocoevalcap). Exit code: 0 all done, 1 some photos failed, 2 nothing "
        "could be done.",
    )
    parser.add_argument("--format", choices=FORMATS, required=True, help="layout of the data set")
    parser.add_argument("--root", required=True, metavar="DIR", help="its folder")
    parser.add_argument("--split", default="test", help="such as test, val, val2017")
    parser.add_argument("--file", help="dataset_*.json or the table, if the folder holds several")
    parser.add_argument("--coco-splits", metavar="DIR", help="lists of Karpathy's COCO split")
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
    parser.add_argument("--limit", type=whole_number, help="only the first so many photos")
    parser.add_argument(
        "--train-split", metavar="SPLIT", help="count the captions that are not in this split"
    )
    parser.add_argument(
        "--time-limit",
        type=_seconds,
        default=600.0,
        metavar="S",
        help="for the scorers, in seconds",
    )
    looking.add_options(parser)
    add_model_options(parser)
    add_at_test(parser)
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds above 0")
    return seconds


def _run(arguments: argparse.Namespace) -> int:
    for file in filter(None, (arguments.output, arguments.report, arguments.captions)):
        check_writable(file)  # not after hours of captioning
    split = read_split(split=arguments.split, **_data(arguments))
    training = arguments.train_split and read_captions(
        split=arguments.train_split, **_data(arguments)
    )
    photos = split.photos[: arguments.limit]
    if not (photos or arguments.captions):
        raise DataError(
            f"{arguments.root}: no photo of split {arguments.split!r} has a reference to score "
            "against; name a file with --captions to write captions without scores"
        )
    objects = looking.objects_in(photos, arguments)
    missing = [] if arguments.limit else split.missing  # with a limit, other photos stand in
    for path in missing[:NAMED]:
        print(f"{path}: no such file", file=sys.stderr)
    if len(missing) > NAMED:
        print(f"... and {len(missing) - NAMED} more that are not there", file=sys.stderr)
    unscored = split.uncaptioned[: arguments.limit] if arguments.captions else []
    if split.uncaptioned:
        print(
            f"{len(split.uncaptioned)} photos have no references: they are not scored",
            file=sys.stderr,
        )
    captioner = load_captioner(chosen_model(arguments), arguments)
    asked = photos + unscored
    found, unreadable = _captions(captioner, asked, arguments.beam_size, at_test=arguments.at_test)
    if not found:
        raise DataError(f"{arguments.root}: none of the {len(asked)} photos can be read")
    if arguments.captions:
        write_json(arguments.captions, captions_list({i: c.text for i, c in found.items()}))
    photos = [photo for photo in photos if photo.image_id in found]
    if photos:
        _score(arguments, captioner, photos, found, training, objects)
    for file in filter(None, (arguments.output, arguments.report, arguments.captions)):
        if photos or file == arguments.captions:
            show(str(file))
    return 1 if unreadable or missing else 0


def _score(
    arguments: argparse.Namespace,
    captioner: Captioner,
    photos: list[CaptionedImage],
    found: dict[int | str, Caption],
    training: list[str] | None,
    objects: looking.ObjectsOfPhotos | None,
) -> None:
    """Score the captions found of these photos; write and show what was asked for."""
    from captioner.evaluation.intervals import ImageScores, bootstrap_intervals
    from captioner.evaluation.metrics import score_captions
    from captioner.evaluation.statistics import (
        OBJECTS,
        corpus_statistics,
        scores_by_group,
        scores_by_length,
    )

    captions = {photo.image_id: found[photo.image_id].text for photo in photos}
    references = {photo.image_id: photo.captions for photo in photos}
    names = {photo.image_id: photo.path.name for photo in photos}
    scores = score_captions(captions, references, time_limit_s=arguments.time_limit)
    images = ImageScores.of(scores.per_image, scores.counts)
    groups = {
        "words in the references": scores_by_length(images, references),
        "words in the caption": scores_by_length(images, {i: [t] for i, t in captions.items()}),
    }
    if objects and (by_objects := scores_by_group(images, objects.counts(), OBJECTS)):
        groups["objects in the photo"] = by_objects  # none where no photo of theirs could be read
    statistics = corpus_statistics(list(captions.values()), training)
    intervals = bootstrap_intervals(images)
    signature = scores.signature | _signature(arguments, captioner)
    results = results_of(
        metrics=scores.metrics,
        captions=captions,
        signature=signature | {"photos": digest_of(names, references)},
        scores=scores,
        names=names,
        intervals=intervals,
        statistics=statistics,
        groups=groups,
    )
    if arguments.output:
        write_json(arguments.output, results)  # what follows may take long, or be stopped
    further = looking.further(captioner, photos, found, objects, arguments)
    results |= further
    if arguments.output and further:
        write_json(arguments.output, results)
    if arguments.report:
        _report(arguments.report, results, photos, found)
    if scores.signature["tokenizer"] == PYTHON_TOKENIZER:
        print(
            "scored with the Python tokenizer, whose figures differ a little from published ones",
            file=sys.stderr,
        )
    for name, value in scores.metrics.items():
        if value is None:
            print(f"{name}: {scores.signature[name]}", file=sys.stderr)
            show(f"{name:8} not computed")
        else:
            show("{:8} {:.4f}  [{:.4f}, {:.4f}]".format(name, value, *intervals[name]))
    show("")
    for name, number in statistics.items():
        show(f"{name:20} {'not computed' if number is None else f'{number:.4g}'}")
    if further:
        show("\n" + "\n".join(looking.told(further)))


def _report(
    path: Path,
    results: dict[str, Any],
    photos: list[CaptionedImage],
    captions: dict[int | str, Caption],
) -> None:
    """The best, the worst and some photos by CIDEr, with all figures."""
    import random

    from captioner.data.transforms import open_image
    from captioner.visualization import ReportedImage, report_page

    scores = {image["image_id"]: image["scores"] for image in results["images"]}
    ranked = sorted(photos, key=lambda photo: -scores[photo.image_id]["CIDEr"])
    chosen = {
        "Best photos by CIDEr": ranked[:REPORTED],
        "Worst photos by CIDEr": ranked[REPORTED:][-REPORTED:][::-1],
        "Photos at random": random.Random(0).sample(ranked, REPORTED)
        if len(ranked) > REPORTED  # or all of them are above
        else [],
    }

    def reported(photo: CaptionedImage) -> ReportedImage:
        return ReportedImage(
            name=photo.path.name,
            image=open_image(photo.path),
            caption=captions[photo.image_id],
            references=photo.captions,
            scores={
                name: scores[photo.image_id][name]
                for name in ("CIDEr", "METEOR", "Bleu_4", "SPICE")
                if name in scores[photo.image_id]
            },
        )

    signature = results["signature"]
    page = report_page(
        results,
        {heading: list(map(reported, part)) for heading, part in chosen.items() if part},
        title=f"captioner: {signature['model']} on {signature['data']}",
    )
    save_bytes(page.encode(errors="replace"), path)


def _data(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("format", "root", "file", "coco_splits")
    return {name: getattr(arguments, name) for name in names}


def _signature(arguments: argparse.Namespace, captioner: Captioner) -> dict[str, object]:
    decoding, attention = captioner.config.decoding, captioner.config.attention
    return {
        "model": str(chosen_model(arguments)),
        "beam_size": arguments.beam_size or decoding.beam_size,
        "length_penalty": decoding.length_penalty,
        "no_repeat_ngram": decoding.no_repeat_ngram,
        "max_words": decoding.max_words,
        "at_test": (arguments.at_test or attention.at_test) if captioner.looks_hard else None,
        "precision": arguments.precision,
        "data": f"{arguments.format} {arguments.split}",
    }


def _captions(
    captioner: Captioner,
    photos: list[CaptionedImage],
    beam_size: int | None,
    *,
    at_test: AtTest | None,
) -> tuple[dict[int | str, Caption], int]:
    """Captions by image id, and the number of photos that could not be read."""
    from captioner.runtime.parallel import parallel_map

    captions: dict[int | str, Caption] = {}
    with tqdm(total=len(photos), unit="photo", disable=None) as bar:

        def failed(path: Path, error: ImageError) -> None:
            bar.update()
            tqdm.write(f"{path}: {error}", file=sys.stderr)

        def captioned(batch: list[tuple[int | str, Image.Image]]) -> dict[int | str, Caption]:
            images = [image for _, image in batch]
            found = captioner.caption_batch(images, beam_size=beam_size, at_test=at_test)
            # Of many heads, only their mean is measured.
            return {i: replace(c, heads=None) for (i, _), c in zip(batch, found, strict=True)}

        results: Iterator[dict[int | str, Caption]]
        named = ((photo.image_id, photo.path) for photo in photos)
        batches = opened(named, failed, captioner.device)
        if samples_cells(captioner, at_test):
            results = map(captioned, batches)
        else:
            results = parallel_map(captioned, batches, captioner.device)
        for found in results:
            captions |= found
            bar.update(len(found))
    return captions, len(photos) - len(captions)
