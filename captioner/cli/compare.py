"""`captioner compare`: two results files, and whether their difference is more than chance."""

from __future__ import annotations

from pathlib import Path

from captioner.cli import parsing, run_command, show
from captioner.errors import DataError
from captioner.log import logger

# Parts of the signature that must be equal for scores to be comparable; others may differ.
SAME = ("tokenizer", "Bleu", "METEOR", "ROUGE_L", "CIDEr", "data")


def main(argv: list[str] | None = None) -> int:
    parser = parsing.CommandParser(
        prog="captioner compare",
        description="Compare two results files of captioner evaluate on the same photos: every "
        "metric of both, B - A with its 95 % interval, and p by the paired bootstrap over photos "
        "(Koehn 2004). Exit code: 0 done, 2 they cannot be compared.",
    )
    parser.add_argument("a", type=Path, metavar="A", help="results.json of one model")
    parser.add_argument("b", type=Path, metavar="B", help="results.json of another")
    arguments = parser.parse_args(argv)
    return run_command(lambda: _run(arguments.a, arguments.b))


def _run(a: Path, b: Path) -> int:
    from captioner.evaluation.intervals import paired_bootstrap
    from captioner.evaluation.results import read_results

    (signature_a, scores_a), (signature_b, scores_b) = read_results(a), read_results(b)
    for part in SAME:
        if signature_a.get(part) != signature_b.get(part):
            logger.warning(
                f"{part} differs: {signature_a.get(part)} in {a}, {signature_b.get(part)} in {b}; "
                "what they score is not quite the same"
            )
    photos_a, photos_b = signature_a.get("photos"), signature_b.get("photos")
    if photos_a != photos_b and None not in (photos_a, photos_b):
        raise DataError(
            f"{a} and {b} are not of the same photos and references; evaluate both models on the "
            "same split"
        )
    found = paired_bootstrap(scores_a, scores_b)
    show(f"A {a}\nB {b}\n{len(scores_a.image_ids)} photos\n")
    show(f"{'':8}  {'A':>7}  {'B':>7}  {'B - A':>8}  {'95 % interval':^20}  {'p':>7}")
    for name, row in found.items():
        interval = f"[{row.low:+.4f}, {row.high:+.4f}]"
        show(
            f"{name:8}  {row.a:7.4f}  {row.b:7.4f}  {row.difference:+8.4f}  {interval:^20}  "
            f"{row.p:7.4f}"
        )
    return 0
