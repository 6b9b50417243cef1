"""`captioner evaluate`: caption a split of a data set and score the captions."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from captioner.commands import add_model_options, chosen_model, run_command, show, whole_number
from captioner.commands.output import add_at_test
from captioner.data.readers import FORMATS, CaptionedPhoto, read_split
from captioner.errors import DataError, PhotoError

if TYPE_CHECKING:
    from captioner.attention.select import AtTest
    from captioner.pipeline import Captioner

BATCH = 16


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
    parser.add_argument("--limit", type=whole_number, help="only the first so many photos")
    parser.add_argument(
        "--time-limit", type=float, default=600.0, metavar="S", help="for the scorers, in seconds"
    )
    add_model_options(parser)
    add_at_test(parser)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    from captioner.evaluation.metrics import score_captions
    from captioner.evaluation.results import check_writable, corpus_statistics, write_results
    from captioner.pipeline import Captioner

    if arguments.output:
        check_writable(arguments.output)  # not after hours of captioning
    split = read_split(
        format=arguments.format,
        root=arguments.root,
        split=arguments.split,
        file=arguments.file,
        coco_splits=arguments.coco_splits,
    )
    for path in split.missing:
        print(f"{path}: no such file", file=sys.stderr)
    photos = split.photos[: arguments.limit]
    model = chosen_model(arguments)
    captioner = Captioner.from_pretrained(model, device=arguments.device)
    captions, unreadable = _captions(
        captioner, photos, arguments.beam_size, at_test=arguments.at_test
    )
    if not captions:
        raise DataError(f"{arguments.root}: none of the {len(photos)} photos can be read")
    references = {p.image_id: p.captions for p in photos if p.image_id in captions}
    scores = score_captions(captions, references, time_limit_s=arguments.time_limit)
    beam_size = arguments.beam_size or captioner.config.decoding.beam_size
    signature = {
        **scores.signature,
        "model": str(model),
        "beam_size": beam_size,
        "length_penalty": captioner.config.decoding.length_penalty,
        "no_repeat_ngram": captioner.config.decoding.no_repeat_ngram,
        "max_words": captioner.config.decoding.max_words,
        "at_test": arguments.at_test or captioner.config.attention.at_test
        if captioner.looks_hard
        else None,
        "data": f"{arguments.format} {arguments.split}",
    }
    if arguments.output:
        write_results(
            arguments.output,
            metrics=scores.metrics,
            captions=captions,
            signature=signature,
            statistics=corpus_statistics(list(captions.values())),
        )
    for name, value in scores.metrics.items():
        shown = "not computed" if value is None else f"{value:.4f}"
        show(f"{name:8} {shown}")
    if arguments.output:
        show(str(arguments.output))
    return 1 if unreadable or split.missing else 0


def _captions(
    captioner: Captioner,
    photos: list[CaptionedPhoto],
    beam_size: int | None,
    *,
    at_test: AtTest | None,
) -> tuple[dict[int | str, str], int]:
    """Captions by image id, and the number of photos that could not be read."""
    from captioner.data.transforms import open_photo

    captions: dict[int | str, str] = {}
    unreadable = 0
    with tqdm(total=len(photos), unit="photo", disable=None) as bar:
        for first in range(0, len(photos), BATCH):
            ids, images = [], []
            for photo in photos[first : first + BATCH]:
                try:
                    images.append(open_photo(photo.path))
                    ids.append(photo.image_id)
                except PhotoError as error:
                    unreadable += 1
                    tqdm.write(f"{photo.path}: {error}", file=sys.stderr)
            if images:
                found = captioner.caption_batch(images, beam_size=beam_size, at_test=at_test)
                captions |= {i: caption.text for i, caption in zip(ids, found, strict=True)}
            bar.update(min(BATCH, len(photos) - first))
    return captions, unreadable
