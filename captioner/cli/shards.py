"""`captioner shards`: write a data set as WebDataset shards, to train from."""

from __future__ import annotations

import argparse

from captioner.cli import parsing, run_command, show
from captioner.errors import DataError
from captioner.log import logger, printable, progress_bar

PHOTOS_PER_SHARD = 1000


def main(argv: list[str] | None = None) -> int:
    parser = parsing.CommandParser(
        prog="captioner shards",
        description="Write splits of a data set as WebDataset shards: tar files of photos with "
        "their captions as JSON, each with an index. Train from them with --data.format webdataset "
        "--data.root DIR. Exit code: 0 all done, 1 some photos are missing, 2 nothing could be "
        "done.",
        epilog="example: captioner shards --format coco --root data/coco --split train2017 "
        "--output s3://bucket/coco",
    )
    parsing.add_data_options(
        parser,
        action="append",
        metavar="SPLIT",
        help="a split; may be given several times (default: train and val)",
    )
    parser.add_argument(
        "--output",
        required=True,
        metavar="DIR",
        help="folder or URL for the shards",
    )
    parser.add_argument(
        "--photos-per-shard",
        type=parsing.whole_number_from(1, 100_000),
        default=PHOTOS_PER_SHARD,
        metavar="N",
        help=f"photos in a tar file, which is held in memory (default: {PHOTOS_PER_SHARD})",
    )
    arguments = parser.parse_args(argv)
    if problem := parsing.not_a_folder(arguments.output):
        parser.error(f"argument --output: {problem}")
    return run_command(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from captioner.data.formats.webdataset import write_shards
    from captioner.data.image_checks import split_problems
    from captioner.data.layouts import CaptionedData
    from captioner.storage import Folder

    missing = 0
    data = CaptionedData(parsing.chosen_data(arguments))
    splits = {name: data.split(name) for name in arguments.split or ["train", "val"]}
    for sentence in split_problems(splits):
        logger.warning(sentence)
    for name, split in splits.items():
        if not split.images:
            raise DataError(f"{arguments.root}: no photo of split {name!r} has a caption")
        for sentence in split.left_out(name):
            logger.warning(sentence)
        missing += len(split.missing)
        with progress_bar(total=len(split.images), desc=name, unit="photo") as bar:
            shards = write_shards(
                split.images,
                Folder(arguments.output),
                name,
                photos_per_shard=arguments.photos_per_shard,
                done=bar.update,
            )
        show(
            f"{name}: {len(split.images)} photos in {len(shards)} shards: "
            f"{printable(arguments.output)}/{shards[0]} ..."
        )
    return 1 if missing else 0
