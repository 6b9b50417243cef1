"""What `captioner caption` and `captioner score` share: options, and captions as text and JSON."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from captioner.cli import parsing
from captioner.config import HardAttentionMode
from captioner.errors import CaptionerError
from captioner.log import printable

if TYPE_CHECKING:
    from captioner.captioner import Captioner
    from captioner.visualization import Caption

STANDARD_INPUT = "-"  # in place of a photo
KINDS = ("png", "pdf", "svg", "words", "gif", "html", "matrix", "npz")
COMPARED_KINDS = ("png", "pdf", "svg", "html")  # that can show several models


def is_withheld(confidence: float | None, least: float | None) -> bool:
    """Return whether a caption's confidence is below the least that the user accepts."""
    return least is not None and confidence is not None and confidence < least


def caption_note(
    caption: Caption, *, with_total: bool = False, min_confidence: float | None = None
) -> str:
    """Return a caption with its figures, for people; below `min_confidence` it is withheld."""
    notes = []
    withheld = is_withheld(caption.confidence, min_confidence)
    if caption.confidence is not None:
        value, *threshold = caption.confidence_digits
        unsure = caption.is_unsure and not withheld
        below = f", below {threshold[0]}: unsure" if unsure else ""
        notes.append(f"confidence {value}{below}")
    if with_total:
        steps = len(caption.words) + (caption.end_log_prob is not None)
        notes.append(
            f"log-probability {caption.log_prob:.2f}, {caption.log_prob / steps:.2f} a word"
        )
    text = "no caption" if withheld else printable(caption.text)
    return f"{text} ({'; '.join(notes)})" if notes else text


def files_note(files: Sequence[Path]) -> str:
    """Return the first file of a photo and how many more there are, for the end of a line."""
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f" -> {printable(files[0])}{more}" if files else ""


def caption_content(
    caption: Caption, *, with_total: bool = False, min_confidence: float | None = None
) -> dict[str, Any]:
    """Return a caption for JSON, `with_total` its `log_prob`; one withheld has its confidence."""
    content = caption.to_dict()
    if with_total:
        content["log_prob"] = round(caption.log_prob, 6)
    if is_withheld(caption.confidence, min_confidence):
        content |= {key: None for key in content if not key.startswith("confidence")}
    return content


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for printing, for drawing, and for hard attention."""
    add, number = parser.add_argument, parsing.whole_number
    add("--output", type=parsing.folder, metavar="DIR", help="draw attention sheets here")
    kinds = parsing.names_of((*KINDS, "all"))
    help_ = "separated by commas: png, pdf, svg (the sheet), words (a PNG each), gif, html, "
    help_ += "matrix (words by cells), npz (the raw maps), or all (default: png)"
    add("--save", type=kinds, metavar="KINDS", help=help_)
    add("--words", action="store_true", help="the same as words in --save")
    add("--json", action="store_true", help="print one JSON object a photo")
    add("--cells", action="store_true", help="draw the grid's cells instead of a smooth map")
    add(
        "--style",
        choices=("focus", "light", "colour", "contour", "mask"),
        default="focus",
        help="focus: the photo's own colours where attention is high, grey where it is low, and "
        "lines at 2, 4 and 8 times uniform; light: dimmed where attention is low and lit where it "
        "is high; colour: colours on the grey photo; contour: only the lines; mask: only dimmed "
        "(default: focus)",
    )
    help_ = "of the style colour and of matrices (default: viridis)"
    add("--colour-map", choices=("viridis", "cividis"), default="viridis", help=help_)
    help_ = "strength of the style, 0 to 1 (default: focus 1, light 0.75, colour and mask 0.65)"
    add("--opacity", type=parsing.number_from(0, 1), help=help_)
    help_ = "leave out attention below X times uniform"
    add("--threshold", type=parsing.number_from(0), default=0.0, metavar="X", help=help_)
    add("--layer", type=number, help="maps of this layer (default: the last)")
    add("--head", type=number, help="maps of this head (default: the mean of all)")
    add_at_test(parser)
    paths = parsing.number_from(1, parsing.MAX_WORDS, int)
    help_ = "with hard attention and --output: draw M sampled paths of attention"
    add("--paths", type=paths, default=0, metavar="M", help=help_)


def add_at_test(parser: argparse.ArgumentParser) -> None:
    """Add the option for how hard attention chooses its cells."""
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


def attention_options(
    arguments: argparse.Namespace, models: Sequence[Captioner]
) -> list[dict[str, Any]]:
    """Return the arguments of hard attention for each model, none for those without it.

    Layers and heads that a model lacks are refused, and the arguments if no model takes them.
    """
    from captioner.visualization.caption import check_head

    for captioner in models:
        check_head(arguments.layer, arguments.head, *captioner.attention_heads)
    option = "--at-test" if arguments.at_test else "--paths" if arguments.paths else None
    if option and not any(captioner.has_hard_attention for captioner in models):
        raise CaptionerError(f"{option}: needs a model with hard attention, such as --model hard")
    options = {"at_test": arguments.at_test, "paths": arguments.paths}
    return [options if captioner.has_hard_attention else {} for captioner in models]
