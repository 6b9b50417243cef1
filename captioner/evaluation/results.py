"""The results of an evaluation as a file and as tables, and captions of other programs to score."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captioner.data.formats.table import columns_of, read_tables
from captioner.data.layouts import DataFiles
from captioner.data.records import read_json, usual_column
from captioner.data.splits import CaptionedImage, split_name
from captioner.errors import DataError
from captioner.evaluation.intervals import ImageScores
from captioner.files import save_bytes
from captioner.log import logger


def write_json(path: Path, content: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write JSON; a number that is NaN is a ValueError, as other languages could not read it."""
    save_bytes((json.dumps(content, indent=1, allow_nan=False) + "\n").encode(), path)


def digest_of(names: Mapping[Any, str], references: Mapping[Any, Sequence[str]]) -> str:
    """Return a digest of images and references in any order; results of one can be compared."""
    rows = sorted(json.dumps([str(i), names[i], list(references[i])]) for i in references)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


def read_results(path: Path) -> tuple[dict[str, Any], ImageScores]:
    """Return the signature of results, and the scores of each image, for comparisons."""
    content = read_json(path) if path.suffix.lower() == ".json" else None
    if not isinstance(content, dict) or not {"images", "signature"} <= content.keys():
        raise DataError(
            f"{path} holds captions without scores; name the references with --root DIR, --format "
            "and --split, or give a file that captioner evaluate --output wrote"
        )
    return content["signature"], ImageScores.of(content["images"])


def read_captions(path: Path, split: str, data: DataFiles) -> dict[str, str]:
    """Read one caption an image, by id or name of the image, as any model may have written them.

    Args:
        path: COCO results, a results.json of `captioner evaluate`, a JSON object of names and
            captions, a table, or an output of `captioner batch`.
        split: Rows to read of a table that names splits.
        data: Its columns are those of the table too, where it has them.
    """
    content = read_json(path) if path.suffix.lower() == ".json" else None
    found: list[tuple[str, str | None]] = []
    if isinstance(content, dict) and isinstance(content.get("captions"), list):
        # A results.json, whose ids may be positions in a table.
        try:
            names = {i["image_id"]: i.get("file_name") for i in content.get("images", ())}
            for entry in content["captions"]:
                image_id = entry["image_id"]
                found.append((str(names.get(image_id) or image_id), entry["caption"]))
        except (KeyError, TypeError):
            found = []  # it holds no captions of images
    else:
        parts = path / "parts" if (path / "parts").is_dir() else path
        for file in sorted(parts.glob("*.parquet")) if path.is_dir() else [path]:
            columns = {each: getattr(data, each) for each in ("image_column", "caption_column")}
            there = columns_of(file) or ()
            named = {key: x for key, x in columns.items() if x and usual_column(there, [x])}
            for row in read_tables(DataFiles(**named), [(file, "")]).images:
                if split_name(row.split) in ("", split_name(split)):
                    found += [(str(row.name), text or None) for text in row.captions or [""]]
    captions: dict[str, str] = {}
    for image, caption in found:
        if caption is not None:
            captions.setdefault(image, caption)
    if not captions:
        raise DataError(
            f"{path} holds no captions; give COCO results, a list of "
            '{"image_id": ..., "caption": ...}, or a table with the columns image and caption'
        )
    if len(captions) < len(found):
        logger.warning(
            f"{path}: {len(found) - len(captions)} of {len(found)} entries are left out: they have "
            "no caption, or their photo has an earlier one, which is scored"
        )
    return captions


def match_captions(
    captions: Mapping[str, str], images: Sequence[CaptionedImage]
) -> dict[int | str, str]:
    """Return the captions of these images by their ids.

    Captions name images by their ids or files (`_name_forms`): the way that finds the most images.
    """
    found: dict[int | str, str] = {}
    for way in range(5):
        ids: dict[str, int | str | None] = {}
        for image in images:
            key = [*_name_forms(str(image.path)), str(image.image_id)][way]
            # Of several images, or of no number, it means none.
            ids[key] = None if key in ids or not key else image.image_id
        by_id = {}
        for name, text in captions.items():
            image_id = ids.get([*_name_forms(name), name][way])
            if image_id is not None:
                by_id[image_id] = text
        found = max(found, by_id, key=len)
    return found


def _name_forms(name: str) -> list[str]:
    """Return a file's name with its folder, without, without the suffix, and its last number."""
    parts = name.replace("\\", "/").split("/")
    stem = Path(parts[-1]).stem
    number = re.fullmatch(r"(?:.*[\W_])?0*(\d+)", stem)  # not digits at the end of letters
    return ["/".join(parts[-2:]), parts[-1], stem, number[1] if number else ""]


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
        lines = []
        for name, *values in texts:
            cells = [name.ljust(widths[0]), *map(str.rjust, values, widths[1:])]
            lines.append("  ".join(cells).rstrip())
        return lines


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
