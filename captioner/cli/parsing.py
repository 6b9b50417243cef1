"""Parts of the commands' parsers: the options that several share, and kinds of values."""

from __future__ import annotations

import argparse
import logging
import math
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, get_args

from captioner.cli.suggestions import unknown_option
from captioner.log import logger, printable

STANDARD_INPUT = "-"  # in place of a photo
KINDS = ("png", "pdf", "svg", "words", "gif", "html", "matrix", "npz")
COMPARED_KINDS = ("png", "pdf", "svg", "html")  # that can show several models
MAX_BEAM_SIZE = 100  # memory grows with it; beyond 10 captions hardly change
MAX_WORDS = 1000


class CommandParser(argparse.ArgumentParser):
    """A command's parser: with `--quiet` and `--verbose`, and one sentence on what is wrong."""

    def __init__(self, command: str, description: str | None, words: Sequence[str]) -> None:
        codes = "Exit code: 0 done, 2 it could not be done."
        epilog = None if description and "Exit code" in description else codes
        super().__init__(prog=f"captioner {command}", description=description, epilog=epilog)
        self._words = with_home(words)
        add_log_options(self)

    def parse(self, *, intermixed: bool = False) -> Any:
        """Parse the command's arguments, on both sides of options if they may be `intermixed`."""
        is_plain = not intermixed or "--" in self._words  # which Python's method loses
        parsed = (self.parse_args if is_plain else self.parse_intermixed_args)(self._words)
        set_log_level(parsed)
        return parsed

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments"):
            message += "; put quotes around a pattern, and around a name with blanks"
        if message.endswith("required: PHOTO") and "--compare" in self._words:
            message += "; put --compare and its models after the photos"
        message = printable(unknown_option(self, self._words) or message)
        # Without the usage: the message would be lost among twenty lines of options.
        self.exit(2, f"error: {message} ({self.prog} --help shows the options)\n")


def with_home(words: Sequence[str]) -> list[str]:
    """Return arguments with the home folder in `--option=~/path`, where shells leave the ~."""
    home = os.path.expanduser("~")
    pattern = re.compile(r"^(--(?!prefix|suffix)[\w.-]+=)~(?=/|$)")
    return [pattern.sub(lambda match: match[1] + home, word) for word in words]


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose how much is said on stderr."""
    add = partial(parser.add_mutually_exclusive_group().add_argument, action="store_true")
    add("-q", "--quiet", help="no notes and no progress bar: results, warnings and failures alone")
    help_ = "also say which model runs where, how long it took, and where an error came from"
    add("-v", "--verbose", help=help_)


def set_log_level(arguments: Any) -> None:
    """Follow the options that `add_log_options` added."""
    quiet, verbose = arguments.quiet, arguments.verbose
    logger.setLevel(logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO)


def number_from(
    least: float, most: float = math.inf, kind: type[int] | type[float] = float
) -> Callable[[str], Any]:
    """Return a parser of command line values from `least` to `most`, finite ones."""
    name = "whole number" if kind is int else "number"
    limits = f"from {least:g} " + ("up" if math.isinf(most) else f"to {most:g}")

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most or math.isinf(value):
            raise argparse.ArgumentTypeError(f"'{text}' is not a {name} {limits}")
        return value

    return parse


whole_number = number_from(1, kind=int)


def names_of(accepted: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of names separated by commas, each once and in lower case."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",")))
        if others := [name for name in names if name not in accepted]:
            raise argparse.ArgumentTypeError(
                f"'{others[0]}' is none of {', '.join(accepted)}; separate several by commas"
            )
        return names

    return parse


_FILE_SUFFIXES = frozenset(
    ".png .jpg .jpeg .gif .webp .pdf .svg .html .npz .csv .tsv .txt .json .jsonl .parquet .md .xmp "
    ".tar .zip .pt .pth .ckpt .bin .onnx .safetensors .h5 .pkl".split()
)


def folder_name(text: str) -> str:
    """Parse the name of a folder to write to; refuse the name of a file."""
    path = Path(text)
    if text in ("", "-"):
        raise argparse.ArgumentTypeError(f"'{text}' is not the name of a folder")
    if path.suffix.lower() in _FILE_SUFFIXES and not path.is_dir():
        raise argparse.ArgumentTypeError(
            f"{text} names a file, but a folder is meant, which gets several files; use one, "
            "such as out"
        )
    return text


def folder(text: str) -> Path:
    """Parse the path of a folder to write to; as `folder_name`."""
    return Path(folder_name(text))


def add_model_options(
    parser: argparse.ArgumentParser, *, search: bool = True, engine: str = "--engine"
) -> argparse._MutuallyExclusiveGroup:
    """Add the options that choose a model, its device and, with `search`, its beam.

    The group of those that choose the model is returned: only one of them may be given.
    """
    models = parser.add_mutually_exclusive_group()
    models.add_argument("--model", default="soft", help="a bundled model (default: soft)")
    models.add_argument("--checkpoint", metavar="DIR", help="a model folder, or a run")
    if search:
        help_ = f"1 is greedy search, at most {MAX_BEAM_SIZE} (default: the model's)"
        width = number_from(1, MAX_BEAM_SIZE, int)
        parser.add_argument("--beam-size", type=width, metavar="K", help=help_)
    add_device_options(parser, engine=engine)
    return models


def chosen_model(arguments: argparse.Namespace) -> str | Path:
    """Return the model that `add_model_options` parsed: a bundled name, or a folder's path."""
    return arguments.model if arguments.checkpoint is None else Path(arguments.checkpoint)


def add_search_options(parser: argparse._ActionsContainer, *, min_words: bool = False) -> None:
    """Add the options of the search, except `--beam-size`; `--min-words` if asked for."""
    add = parser.add_argument
    if min_words:
        shortest = number_from(0, MAX_WORDS, int)
        add("--min-words", type=shortest, metavar="N", help="shortest caption (default: 1)")
    longest = number_from(1, MAX_WORDS, int)
    add("--max-words", type=longest, metavar="N", help="longest caption (default: the model's)")
    help_ = "rank captions by log-probability / length ** P (default: the model's)"
    add("--length-penalty", type=number_from(-10, 10), metavar="P", help=help_)  # as in recipes


def given(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return by name those of these options that were given."""
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def add_device_options(parser: argparse.ArgumentParser, *, engine: str = "--engine") -> None:
    """Add the options for where and how the model is computed."""
    add = parser.add_argument
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    help_ = "number format of the encoder; bfloat16 is faster on some CPUs, slower on others "
    help_ += "(default: float32)"
    add("--precision", choices=["float32", "bfloat16"], default="float32", help=help_)
    help_ = "torch, or runtime: the model's graphs on a CPU (default: auto, runtime where it can)"
    add(engine, choices=["auto", "torch", "runtime"], default="auto", help=help_)


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for printing, for drawing, and for hard attention."""
    add, number = parser.add_argument, whole_number
    add("--output", type=folder, metavar="DIR", help="draw attention sheets here")
    help_ = "separated by commas: png, pdf, svg (the sheet), words (a PNG each), gif, html, "
    help_ += "matrix (words by cells), npz (the raw maps), or all (default: png)"
    add("--save", type=names_of((*KINDS, "all")), metavar="KINDS", help=help_)
    add("--words", action="store_true", help="the same as words in --save")
    add("--json", action="store_true", help="print one JSON object a photo")
    add("--cells", action="store_true", help="draw the grid's cells instead of a smooth map")
    styles = ("focus", "light", "colour", "contour", "mask")
    help_ = "focus: the photo's own colours where attention is high, grey where it is low, and "
    help_ += "lines at 2, 4 and 8 times uniform; light: dimmed where attention is low and lit "
    help_ += "where it is high; colour: colours on the grey photo; contour: only the lines; mask: "
    help_ += "only dimmed (default: focus)"
    add("--style", choices=styles, default="focus", help=help_)
    help_ = "of the style colour and of matrices (default: viridis)"
    add("--colour-map", choices=("viridis", "cividis"), default="viridis", help=help_)
    help_ = "strength of the style, 0 to 1 (default: focus 1, light 0.75, colour and mask 0.65)"
    add("--opacity", type=number_from(0, 1), help=help_)
    help_ = "leave out attention below X times uniform"
    add("--threshold", type=number_from(0), default=0.0, metavar="X", help=help_)
    add("--layer", type=number, help="maps of this layer (default: the last)")
    add("--head", type=number, help="maps of this head (default: the mean of all)")
    add_at_test(parser)
    help_ = "with hard attention and --output: draw M sampled paths of attention"
    add("--paths", type=number_from(1, MAX_WORDS, int), default=0, metavar="M", help=help_)


def add_at_test(parser: argparse.ArgumentParser) -> None:
    """Add the option for how hard attention chooses its cells."""
    from captioner.config import HardAttentionMode  # here, because captioner --help needs no YAML

    help_ = "how hard attention chooses its cells (default: the model's setting)"
    parser.add_argument("--at-test", choices=get_args(HardAttentionMode), help=help_)


def check_output_options(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuse options that contradict each other; set `save` to the kinds of files to save."""
    for option in ("save", "words", "paths", "style", "cells", "threshold", "opacity"):
        if getattr(arguments, option) != parser.get_default(option) and arguments.output is None:
            parser.error(f"argument --{option}: needs --output, the folder to draw in")
    possible = COMPARED_KINDS if arguments.compare else KINDS
    # With --write, sheets are drawn only where the options name them.
    kinds = arguments.save or (() if arguments.write or arguments.words else ("png",))
    if arguments.words:
        kinds = (*kinds, "words")
    if "all" in kinds:
        kinds = possible
    if others := set(kinds) - set(possible):
        parser.error(f"argument --save: {min(others)} shows one model, so not with --compare")
    if "words" in kinds and not {"png", "pdf", "svg"} & {*kinds}:
        kinds = ("png", *kinds)  # single words say little without the sheet of all
    arguments.save = tuple(dict.fromkeys(kinds))
