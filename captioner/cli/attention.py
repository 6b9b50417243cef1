"""Options of `captioner evaluate` that measure attention, and their figures as lines."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.cli import whole_number
from captioner.errors import DataError
from captioner.log import logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from captioner.data.captioned import CaptionedImage
    from captioner.evaluation.evaluate import AttentionSettings

FAITHFULNESS_PHOTOS = 150
REMOVALS = ("delete", "blur")  # as in evaluation.evaluate, which imports torch
REGIONS = ("masks", "boxes")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `settings` reads."""
    parser.add_argument(
        "--objects",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="COCO's instances_*.json of the photos: does attention lie on the objects named?",
    )
    parser.add_argument(
        "--faithfulness",
        type=whole_number,
        nargs="?",
        const=FAITHFULNESS_PHOTOS,
        default=0,
        metavar="N",
        help="on the first N photos (default: 150), replace the attention and delete attended "
        "cells: do the words become unlikely?",
    )
    parser.add_argument(
        "--removal",
        choices=REMOVALS,
        default="delete",
        help="delete cells from the grid, or blur the photo there (default: delete)",
    )
    parser.add_argument(
        "--regions",
        choices=REGIONS,
        default="masks",
        help="an object's mask (its box where it has none) or its box (default: masks)",
    )


def settings(images: Sequence[CaptionedImage], arguments: argparse.Namespace) -> AttentionSettings:
    """Return the measurements that the options ask for.

    Raises:
        DataError: A file is no file of objects, or of none of these photos.
    """
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


def lines(results: dict[str, Any]) -> list[str]:
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
                f"  in order of {order:37} " + "".join(f"{fall:8.3f}" for fall in faithfulness[key])
                for order, key in (
                    ("attention", "attention"),
                    ("chance", "random"),
                    ("attention, least first", "reverse"),
                )
            ),
        ]
    return found
