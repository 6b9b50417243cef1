"""`captioner evaluate`: caption a split of a data set and score the captions."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from captioner.commands import (
    add_model_options,
    chosen_model,
    load_captioner,
    run_command,
    show,
    whole_number,
)
from captioner.commands.output import add_at_test, looks_at_random
from captioner.commands.photos import opened
from captioner.data.readers import FORMATS, CaptionedPhoto, Split, read_split
from captioner.errors import DataError, PhotoError
from captioner.files import check_writable, save_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from PIL import Image

    from captioner.attention.select import AtTest
    from captioner.evaluation.grounding import GroundedWord
    from captioner.evaluation.objects import Objects
    from captioner.grid import Caption
    from captioner.pipeline import Captioner

REPORTED = 6  # photos of a kind in a report
REMOVALS = ("delete", "blur")  # as in evaluation.faithfulness, which brings torch


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
    parser.add_argument("--limit", type=whole_number, help="only the first so many photos")
    parser.add_argument(
        "--train-split", metavar="SPLIT", help="count the captions that are not in this split"
    )
    parser.add_argument(
        "--objects",
        type=Path,
        metavar="FILE",
        help="COCO's instances_*.json of the photos: does attention lie on the objects named?",
    )
    parser.add_argument(
        "--faithfulness",
        type=whole_number,
        default=0,
        metavar="N",
        help="on the first N photos, take away the cells looked at: do the words become unlikely?",
    )
    parser.add_argument(
        "--removal", choices=REMOVALS, default="delete", help="how (default: delete, in the grid)"
    )
    parser.add_argument(
        "--time-limit", type=float, default=600.0, metavar="S", help="for the scorers, in seconds"
    )
    add_model_options(parser)
    add_at_test(parser)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    from captioner.evaluation.intervals import ImageScores, bootstrap_intervals
    from captioner.evaluation.metrics import score_captions
    from captioner.evaluation.objects import Objects
    from captioner.evaluation.results import results_of, write_json
    from captioner.evaluation.statistics import (
        OBJECTS,
        corpus_statistics,
        scores_by_group,
        scores_by_length,
    )

    for file in filter(None, (arguments.output, arguments.report)):
        check_writable(file)  # not after hours of captioning
    split = _split(arguments, arguments.split)
    training = arguments.train_split and [
        text for photo in _split(arguments, arguments.train_split).photos for text in photo.captions
    ]
    objects = Objects.read(arguments.objects) if arguments.objects else None
    for path in split.missing:
        print(f"{path}: no such file", file=sys.stderr)
    photos = split.photos[: arguments.limit]
    model = chosen_model(arguments)
    captioner = load_captioner(model, arguments)
    found, unreadable = _captions(captioner, photos, arguments.beam_size, at_test=arguments.at_test)
    if not found:
        raise DataError(f"{arguments.root}: none of the {len(photos)} photos can be read")
    photos = [photo for photo in photos if photo.image_id in found]
    captions = {image_id: caption.text for image_id, caption in found.items()}
    references = {photo.image_id: photo.captions for photo in photos}
    scores = score_captions(captions, references, time_limit_s=arguments.time_limit)
    images = ImageScores.of(scores.per_image, scores.counts)
    groups = {
        "words in the references": scores_by_length(images, references),
        "words in the caption": scores_by_length(images, {i: [t] for i, t in captions.items()}),
    }
    further: dict[str, Any] = {}
    if objects:
        counts = {image_id: objects.count(image_id) for image_id in captions}
        groups["objects in the photo"] = scores_by_group(images, counts, OBJECTS)
        further["grounding"] = _grounding(captioner, photos, found, objects, arguments.at_test)
    if arguments.faithfulness:
        further["faithfulness"] = _faithfulness(
            captioner, photos[: arguments.faithfulness], found, arguments
        )
    statistics = corpus_statistics(list(captions.values()), training)
    intervals = bootstrap_intervals(images)
    results = results_of(
        metrics=scores.metrics,
        captions=captions,
        signature=scores.signature | _signature(arguments, captioner),
        scores=scores,
        intervals=intervals,
        statistics=statistics,
        groups=groups,
        **further,
    )
    if arguments.output:
        write_json(arguments.output, results)
    if arguments.report:
        _report(arguments.report, results, photos, found)
    for name, value in scores.metrics.items():
        if value is None:
            show(f"{name:8} not computed")
        else:
            show("{:8} {:.4f}  [{:.4f}, {:.4f}]".format(name, value, *intervals[name]))
    show("")
    for name, number in statistics.items():
        show(f"{name:20} {'not computed' if number is None else f'{number:.4g}'}")
    if further:
        show("\n" + "\n".join(_told(further)))
    for file in filter(None, (arguments.output, arguments.report)):
        show(str(file))
    return 1 if unreadable or split.missing else 0


def _told(further: dict[str, Any]) -> list[str]:
    """Grounding and faithfulness in lines for the terminal; results.json has more."""
    lines = []
    for source, found in further.get("grounding", {}).items():
        lines.append(f"attention on the objects named, {source}: {found['num_words']} words")
        for name, key in (("correctness", "correctness"), ("pointing game", "hit")):
            if found["num_words"]:
                own, uniform, centre = (found[key + kind] for kind in ("", "_uniform", "_centre"))
                lines.append(f"  {name:14} {own:.3f}  (uniform {uniform:.3f}, centre {centre:.3f})")
    if faithfulness := further.get("faithfulness"):
        shares = "".join(f"{share:8.0%}" for share in faithfulness["shares"])
        lines += [
            f"fall of a word's log-probability, cells taken away: {shares}",
            *(
                f"  in order of {order:37} " + "".join(f"{fall:8.3f}" for fall in faithfulness[key])
                for order, key in (
                    ("attention", "attention"),
                    ("chance", "random"),
                    ("attention, least first", "reverse"),
                )
            ),
        ]
    return lines


def _report(
    path: Path,
    results: dict[str, Any],
    photos: list[CaptionedPhoto],
    captions: dict[int | str, Caption],
) -> None:
    """The best, the worst and some photos by CIDEr, with all figures."""
    import random

    from captioner.data.transforms import open_photo
    from captioner.rendering import ReportedPhoto, report_page

    scores = {image["image_id"]: image["scores"] for image in results["images"]}
    ranked = sorted(photos, key=lambda photo: -scores[photo.image_id]["CIDEr"])
    middle = ranked[REPORTED:-REPORTED]
    chosen = {
        "Best photos by CIDEr": ranked[:REPORTED],
        "Worst photos by CIDEr": ranked[REPORTED:][-REPORTED:][::-1],
        "Photos at random": random.Random(0).sample(middle, min(REPORTED, len(middle))),
    }

    def reported(photo: CaptionedPhoto) -> ReportedPhoto:
        return ReportedPhoto(
            name=photo.path.name,
            photo=open_photo(photo.path),
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


def _split(arguments: argparse.Namespace, name: str) -> Split:
    return read_split(
        format=arguments.format,
        root=arguments.root,
        split=name,
        file=arguments.file,
        coco_splits=arguments.coco_splits,
    )


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
    photos: list[CaptionedPhoto],
    beam_size: int | None,
    *,
    at_test: AtTest | None,
) -> tuple[dict[int | str, Caption], int]:
    """Captions by image id, and the number of photos that could not be read."""
    from captioner.passes import side_by_side

    captions: dict[int | str, Caption] = {}
    with tqdm(total=len(photos), unit="photo", disable=None) as bar:

        def failed(path: Path, error: PhotoError) -> None:
            bar.update()
            tqdm.write(f"{path}: {error}", file=sys.stderr)

        def captioned(batch: list[tuple[int | str, Image.Image]]) -> dict[int | str, Caption]:
            images = [image for _, image in batch]
            found = captioner.caption_batch(images, beam_size=beam_size, at_test=at_test)
            # Of many heads, only their mean is measured.
            return {i: replace(c, heads=None) for (i, _), c in zip(batch, found, strict=True)}

        results: Iterator[dict[int | str, Caption]]
        batches = opened(((photo.image_id, photo.path) for photo in photos), failed)
        if looks_at_random(captioner, at_test):
            results = map(captioned, batches)
        else:
            results = side_by_side(captioned, batches, captioner.device)
        for found in results:
            captions |= found
            bar.update(len(found))
    return captions, len(photos) - len(captions)


def _grounding(
    captioner: Captioner,
    photos: list[CaptionedPhoto],
    captions: dict[int | str, Caption],
    objects: Objects,
    at_test: AtTest | None,
) -> dict[str, object]:
    """Of the model's captions, and of the first reference of each photo, which it only reads."""
    from captioner.evaluation.grounding import ground, summary

    written: list[GroundedWord] = []
    read: list[GroundedWord] = []
    for photo in tqdm(photos, desc="grounding", unit="photo", disable=None):
        caption = captioner.score(photo.path, photo.captions[0], at_test=at_test)
        written += ground(captions[photo.image_id], photo.image_id, objects)
        read += ground(caption, photo.image_id, objects)
    return {"captions": summary(written), "references": summary(read)}


def _faithfulness(
    captioner: Captioner,
    photos: list[CaptionedPhoto],
    captions: dict[int | str, Caption],
    arguments: argparse.Namespace,
) -> dict[str, object]:
    import numpy as np

    from captioner.data.transforms import open_photo
    from captioner.evaluation.faithfulness import deletion_in_grid, deletion_in_photo, summary

    generator = np.random.default_rng(0)
    falls = []
    for photo in tqdm(photos, desc="faithfulness", unit="photo", disable=None):
        image, caption = open_photo(photo.path), captions[photo.image_id]
        if not caption.words:
            continue
        grid, geometries = captioner.encode([image])
        tokens = captioner.vocabulary.encode(caption.words)
        maps = caption.maps.reshape(len(tokens), -1)
        decoder = captioner.model.decoder
        with captioner.looking(arguments.at_test):
            if arguments.removal == "delete":
                fall = deletion_in_grid(decoder, grid, tokens, maps, generator)
            else:
                fall = deletion_in_photo(
                    decoder,
                    grid,
                    tokens,
                    maps,
                    generator,
                    photo=image,
                    geometry=geometries[0],
                    encode=lambda variants: captioner.encode(variants)[0],
                )
        falls.append(fall)
    return {"removal": arguments.removal, **summary(falls)}
