"""Compare two results files of captioner evaluate on the same photos.

Shows every metric of both, B - A with its 95 % interval, and p by the paired bootstrap over photos
(Koehn 2004). Files that hold captions alone, such as COCO results of another program, are scored
first, against the references that --root and --split name.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.cli import parsing, run_command, show
from captioner.errors import DataError
from captioner.log import logger

if TYPE_CHECKING:
    from captioner.evaluation.intervals import ImageScores

# Parts of the signature that must be equal for scores to be comparable; others may differ.
SAME = ("tokenizer", "Bleu", "METEOR", "ROUGE_L", "CIDEr", "data")


def main(argv: list[str] | None = None) -> int:
    parser = parsing.CommandParser("compare", __doc__)
    parser.add_argument("a", type=Path, metavar="A", help="results.json or captions of one model")
    parser.add_argument("b", type=Path, metavar="B", help="those of another")
    help_ = "of the references (default: test)"
    parsing.add_data_options(parser, required=False, default="test", help=help_)
    return run_command(lambda: _run(parser.parse_args(argv)))


def _run(arguments: argparse.Namespace) -> int:
    from captioner.evaluation.intervals import paired_bootstrap

    a, b = arguments.a, arguments.b
    (signature_a, scores_a), (signature_b, scores_b) = (_scores(path, arguments) for path in (a, b))
    for part in SAME:
        if signature_a.get(part) != signature_b.get(part):
            logger.warning(
                f"{part} differs: {signature_a.get(part)} in {a}, {signature_b.get(part)} in {b}; "
                "what they score is not quite the same"
            )
    photos_a, photos_b = signature_a.get("photos"), signature_b.get("photos")
    same_images = set(scores_a.image_ids) == set(scores_b.image_ids)
    if same_images and photos_a != photos_b and None not in (photos_a, photos_b):
        raise DataError(
            f"{a} and {b} are not of the same photos and references; evaluate both models on the "
            "same split"
        )
    found = paired_bootstrap(scores_a, scores_b)
    show(f"A {a}\nB {b}\n{len(scores_a.image_ids)} photos\n")
    show(f"{'':8}  {'A':>7}  {'B':>7}  {'B - A':>8}  {'95 % interval':^20}  {'p':>7}")
    for name, row in found.items():
        interval = f"[{row.low:+.4f}, {row.high:+.4f}]"
        figures = f"{row.a:7.4f}  {row.b:7.4f}  {row.difference:+8.4f}  {interval:^20}"
        show(f"{name:8}  {figures}  {row.p:7.4f}")
    return 0


def _scores(path: Path, arguments: argparse.Namespace) -> tuple[dict[str, Any], ImageScores]:
    """Return the signature and the scores of a file; captions are scored if references are named.

    With references, both files are scored anew, so that they are compared in the same way.
    """
    from captioner.cli.evaluate import score_file
    from captioner.evaluation.intervals import ImageScores
    from captioner.evaluation.results import read_results

    if arguments.root is not None:
        content = score_file(path, parsing.chosen_data(arguments), arguments.split)
        return content["signature"], ImageScores.of(content["images"])
    found = read_results(path)
    if found is None:
        raise DataError(
            f"{path} holds captions without scores; name the references with --root DIR, --format "
            "and --split, or give a file that captioner evaluate --output wrote"
        )
    return found
