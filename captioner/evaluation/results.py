"""The results file of an evaluation, and captions of other programs to score in its way."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from captioner.data.formats.table import read_tables
from captioner.data.layouts import DataFiles
from captioner.data.records import read_json
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


def read_results(path: Path) -> tuple[dict[str, Any], ImageScores] | None:
    """Return the signature of results, and the scores of each image, for comparisons.

    None stands for a file without scores, such as a list of captions.
    """
    content = read_json(path) if path.suffix.lower() == ".json" else None
    if not isinstance(content, dict) or not {"images", "signature"} <= content.keys():
        return None
    return content["signature"], ImageScores.of(content["images"])


def read_captions(path: Path, split: str) -> dict[str, str]:
    """Read one caption an image, by id or name of the image, as any model may have written them.

    Args:
        path: COCO results, a results.json of `captioner evaluate`, a JSON object of names and
            captions, a table, or an output of `captioner batch`.
        split: Rows to read of a table that names splits.
    """
    content = read_json(path) if path.suffix.lower() == ".json" else None
    found: list[tuple[str, str | None]] = []
    if isinstance(content, dict) and isinstance(content.get("captions"), list):
        # A results.json, whose ids may be positions in a table.
        names = {image["image_id"]: image.get("file_name") for image in content.get("images", ())}
        for entry in content["captions"]:
            image_id = entry["image_id"]
            found.append((str(names.get(image_id) or image_id), entry["caption"]))
    else:
        parts = path / "parts" if (path / "parts").is_dir() else path
        for file in sorted(parts.glob("*.parquet")) if path.is_dir() else [path]:
            for row in read_tables(DataFiles(), [(file, "")]).images:
                if split_name(row.split) in ("", split_name(split)):
                    found.append((str(row.name), next(filter(None, row.captions), None)))
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
            "no caption, or their image has one before"
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
            ids[key] = None if key in ids else image.image_id  # of several images it means none
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
    return ["/".join(parts[-2:]), parts[-1], stem, re.split(r"\D", stem)[-1].lstrip("0")]
