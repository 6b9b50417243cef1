"""Check photos and captions before training, and say what to mend.

Finds what cannot be read, captions without words, photos that are there twice or in two splits;
counts lengths and words. Example: captioner check-data photos.csv --contact-sheet sheet.jpg
Exit code: 0 nothing to mend, 1 something to mend, 2 the data set cannot be read.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import fields
from pathlib import Path

from captioner.cli import command, parsing, show
from captioner.config.settings import DataConfig
from captioner.data import checks
from captioner.data.images import open_image
from captioner.data.layouts import CaptionedData, DataFiles
from captioner.data.splits import Split
from captioner.errors import DataError, listed
from captioner.evaluation.results import write_json
from captioner.files import check_writable, replacing, writing
from captioner.log import printable, progress_bar
from captioner.registry import DATA_FORMATS, TOKENIZERS

ON_SHEET = 36  # photos on a contact sheet


@command
def check_data(parser: parsing.CommandParser) -> int:
    add = parser.add_argument
    add("root", help="folder of the data set, or its captions file")
    add("--split", action="append", help="a split; may be given several times (default: all)")
    add_layout_options(parser)
    add("--tokenizer", choices=tuple(TOKENIZERS), default="words", help="as in data.tokenizer")
    words = DataConfig.max_words
    help_ = f"as data.max_words of the training (default: {words}); not for subwords"
    add("--max-words", type=parsing.whole_number, default=words, metavar="N", help=help_)
    help_ = f"draw up to {ON_SHEET} photos at random with a caption each (.jpg or .png)"
    add("--contact-sheet", type=Path, metavar="FILE", help=help_)
    add("--output", type=Path, metavar="FILE", help="write the report as JSON here")
    arguments = parser.parse()
    sheet = arguments.contact_sheet
    if sheet and sheet.suffix.lower() not in (".jpg", ".jpeg", ".png"):
        parser.error(f"argument --contact-sheet: {sheet} does not end in .jpg or .png")

    written = [file for file in (arguments.output, sheet) if file]
    for file in written:
        check_writable(file)
    data = CaptionedData(chosen_data(arguments))
    splits, problems = _read_splits(data, arguments.split)
    show(printable(data.description()))
    tokenizer = TOKENIZERS[arguments.tokenizer]()
    of_split = {
        image.path: name
        for name, split in splits.items()
        for image in (*split.images, *split.uncaptioned)
    }
    with progress_bar(total=len(of_split), unit="photo") as bar:
        sizes, unreadable, equal = checks.read_images(of_split, bar.update)
    problems += checks.split_problems(splits)
    statistics = {}
    for name, split in splits.items():
        readable = [image for image in split.images if image.path in sizes]
        counts = checks.caption_statistics(readable, tokenizer)
        statistics[name] = {"photos": len(readable), **counts}
        fewest, most = counts["captions_a_photo"]
        shortest, median, longest = counts["words_a_caption"]
        show(
            f"{name}: {len(readable)} photos, {counts['captions']} captions ({fewest} to {most} a "
            f"photo), {shortest} to {longest} words (median {median}), {counts['words']} different "
            f"words ({counts['rare_words']} of them fewer than 5 times)"
        )
        found = checks.caption_findings(split, tokenizer, arguments.max_words)
        problems += [*split.left_out(name), *(f"{name}: {sentence}" for sentence in found)]
    problems = list(dict.fromkeys(problems))  # those of a file come with each of its splits
    small = [str(path) for path, size in sizes.items() if min(size) < checks.SMALL_PX]
    pairs = [(f"{a} and {b}", of_split[a] == of_split[b]) for a, b in equal]
    for kind, things in {
        "cannot be read": [f"{path}: {reason}" for path, reason in unreadable.items()],
        f"smaller than {checks.SMALL_PX} pixels": small,
        "in two splits under two names (keep one)": [pair for pair, same in pairs if not same],
        "there twice (keep one)": [pair for pair, same in pairs if same],
    }.items():
        if things:
            problems.append(f"{kind}: {len(things)}, namely {listed(things)}")
    for line in [f"mend: {sentence}" for sentence in problems] or ["nothing to mend"]:
        show(printable(line))
    if arguments.output:
        write_json(arguments.output, {"splits": statistics, "mend": problems})
    if sheet:
        from captioner.visualization.word_pictures import contact_sheet

        members = [(name, member) for name, split in splits.items() for member in split.images]
        drawable = [(name, member) for name, member in members if member.path in sizes]
        chosen = random.Random(0).sample(drawable, min(ON_SHEET, len(drawable)))
        tiles = [(open_image(each.path), f"{name}: {each.captions[0]}") for name, each in chosen]
        kind = "PNG" if sheet.suffix.lower() == ".png" else "JPEG"
        with writing(sheet), replacing(sheet) as file:
            contact_sheet(tiles).save(file, kind, quality=90)
    for file in written:
        show(file)
    return 1 if problems else 0


def add_layout_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how a data set lies on disk, where it is not recognised."""
    add = parser.add_argument
    help_ = "layout of the data set (default: auto, which recognises it)"
    add("--format", choices=("auto", *DATA_FORMATS), default="auto", help=help_)
    add("--file", help="captions file, if the folder holds several")
    add("--coco-splits", metavar="DIR", help="lists of Karpathy's COCO split")
    add("--image-column", metavar="NAME", help="a table's column of images")
    add("--caption-column", metavar="NAME", help="a table's column of captions")
    help_ = "remove what nearly all captions begin or end with, such as startseq or <end>"
    add("--strip-markers", action="store_true", help=help_)


def chosen_data(arguments: argparse.Namespace) -> DataFiles:
    """Return the data set that the options of `add_layout_options` and `root` choose."""
    return DataFiles(**{f.name: getattr(arguments, f.name) for f in fields(DataFiles)})


def _read_splits(
    data: CaptionedData, names: list[str] | None
) -> tuple[dict[str, Split], list[str]]:
    """Return splits by name, those asked for or all, and a sentence for each without a photo."""
    if names:
        return {name: data.split(name) for name in names}, []
    everything = data.everything()
    if not data.split_names:
        return {"all": everything}, []
    splits: dict[str, Split] = {}
    absent: list[str] = []
    for name in data.split_names:
        try:
            splits[name] = data.split(name)
        except DataError as error:  # such as train2017, where only val2017 was downloaded
            absent.append(f"{name}: {error}")
    return splits, absent
