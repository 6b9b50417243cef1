"""The figures of an evaluation as tables, for the terminal and for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BIAS = "People and clothes"
Cell = str | float | None  # None is "not defined"


@dataclass(frozen=True)
class Table:
    """Rows of figures under a heading; `head` names the columns, the first of them the rows'."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def lines(self) -> list[str]:
        """Return the table as aligned text."""
        rows = [[cell_text(cell) for cell in row] for row in self.rows]
        texts = [self.head, *rows] if any(self.head) else rows
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        return [
            "  ".join(
                text.rjust(width) if column else text.ljust(width)
                for column, (text, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in texts
        ]


def cell_text(cell: Cell) -> str:
    """Return the text of a cell; fractions have three places."""
    if cell is None or isinstance(cell, str):
        return cell or ("not defined" if cell is None else "")
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:.3f}"


def result_tables(results: Mapping[str, Any]) -> list[Table]:
    """Return the tables of the content of results.json, without those that were not measured."""
    signature, intervals = results["signature"], results["intervals"]
    title = f"Scores of {results['num_images']} photos, with 95 % intervals by the bootstrap"
    rows: list[Sequence[Cell]] = [
        [name, signature[name].partition(":")[0], "", ""]
        if value is None
        else [name, value, *intervals[name]]
        for name, value in results["metrics"].items()
    ]
    tables = [Table(title, ["", "score", "from", "to"], rows)]
    rows = [
        [name.replace("_", " "), "not computed" if value is None else value]
        for name, value in results["statistics"].items()
    ]
    tables.append(Table("Captions", ["", ""], rows))
    if found := results.get("calibration"):
        rows = [
            ["expected calibration error", found["ece"]],
            ["area under the curve", found["auc"]],
            ["share of right captions", found["right"]],
            ["of the surest half", found["risk_coverage"][4]["right"]],
        ]
        tables.append(Table("Confidence", ["", ""], rows))
    if found := results.get("bias"):
        rows = [
            [f"{category}: {group}", row["photos"]]
            + [row[name] / row["photos"] for name in ("right", "wrong", "silent")]
            for category, groups in found.items()
            for group, row in groups.items()
        ]
        tables.append(Table(BIAS, ["", "photos", "right", "wrong", "neither"], rows))
    rows = [
        [f"{name}, {source}", found["num_words"], found[key], *found["intervals"][key]]
        + [found[f"{key}_{kind}"] for kind in ("uniform", "centre", "others")]
        for source, found in results.get("grounding", {}).items()
        if found["num_words"]
        for name, key in (("attention correctness", "correctness"), ("pointing game", "hit"))
    ]
    if rows:
        head = ["", "words", "model", "from", "to", "uniform", "centre", "other words"]
        tables.append(Table("Attention on the objects that words name", head, rows))
    if found := results.get("attention"):
        title = (
            "Loss of log-probability a word, in nats, when attention is replaced "
            "(cell_changes: a share of the words)"
        )
        rows = [
            [name, entry["value"], *entry["interval"], entry.get("control", "")]
            for name, entry in found.items()
        ]
        tables.append(Table(title, ["", "loss", "from", "to", "random cells"], rows))
    return tables
