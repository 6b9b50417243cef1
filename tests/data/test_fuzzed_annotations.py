"""Damaged annotation files of every format: read, or refused in one sentence with file and place."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mutations
import pytest

from captioner.data.layouts import read_split
from captioner.errors import DataError

NAMES = [f"{number}.jpg" for number in range(4)]
CAPTIONS = {name: [f"a dog number {number}", 'two, "dogs"'] for number, name in enumerate(NAMES)}


def flickr8k(root: Path) -> Path:
    lines = [f"{name}#{n}\t{c}" for name, texts in CAPTIONS.items() for n, c in enumerate(texts)]
    (root / "Flickr8k.token.txt").write_text("\n".join(lines) + "\n")
    (root / "Flickr_8k.trainImages.txt").write_text("\n".join(NAMES) + "\n")
    return root / "Flickr8k.token.txt"


def flickr8k_split(root: Path) -> Path:
    flickr8k(root)
    return root / "Flickr_8k.trainImages.txt"


def karpathy(root: Path) -> Path:
    images = [
        {"filename": name, "split": "train", "cocoid": n, "filepath": "images",
         "sentences": [{"raw": text} for text in CAPTIONS[name]]}
        for n, name in enumerate(NAMES)
    ]  # fmt: skip
    (root / "dataset_x.json").write_text(json.dumps({"images": images}))
    return root / "dataset_x.json"


def coco(root: Path) -> Path:
    path = root / "annotations" / "captions_images.json"
    path.parent.mkdir(exist_ok=True)
    images = [{"id": n, "file_name": name} for n, name in enumerate(NAMES)]
    texts = [(n, text) for n, name in enumerate(NAMES) for text in CAPTIONS[name]]
    annotations = [{"id": i, "image_id": n, "caption": text} for i, (n, text) in enumerate(texts)]
    path.write_text(json.dumps({"images": images, "annotations": annotations}))
    return path


def table_csv(root: Path) -> Path:
    file = io.StringIO()
    rows = csv.writer(file)
    rows.writerow(["image", "caption", "split"])
    rows.writerows([f"images/{n}", text, "train"] for n in NAMES for text in CAPTIONS[n])
    (root / "captions.csv").write_text(file.getvalue())
    return root / "captions.csv"


def table_jsonl(root: Path) -> Path:
    rows = [{"image": f"images/{name}", "caption": CAPTIONS[name]} for name in NAMES]
    (root / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root / "captions.jsonl"


def read(kind: str, root: Path) -> list[tuple[str, ...]]:
    split = {"coco": "images", "table_jsonl": "all"}.get(kind, "train")
    format = kind.partition("_")[0]
    return [image.captions for image in read_split(format=format, root=root, split=split).images]


KINDS: dict[str, Callable[[Path], Path]] = {
    each.__name__: each
    for each in (flickr8k, flickr8k_split, karpathy, coco, table_csv, table_jsonl)
}
# The line, the character, or the number of the entry; or the list that is missing.
PLACE = re.compile(r"line \d|char \d|number \d|no list|no JSON object|no COCO captions|heading")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    (tmp_path / "images").mkdir()
    for name in NAMES:
        (tmp_path / "images" / name).touch()
    KINDS[request.param](tmp_path)
    return str(request.param)


def test_undamaged_files_are_read(kind: str, tmp_path: Path) -> None:
    assert read(kind, tmp_path) == [tuple(CAPTIONS[name]) for name in NAMES]


def test_truncated_files_are_read_or_refused_with_file_and_place(kind: str, tmp_path: Path) -> None:
    path = KINDS[kind](tmp_path)
    whole = path.read_bytes()
    refused = 0
    for length in range(0, len(whole), max(1, len(whole) // 60)):
        path.write_bytes(whole[:length])
        try:
            read(kind, tmp_path)
        except DataError as error:
            refused += 1
            assert str(path) in str(error) or str(tmp_path) in str(error)
            assert "\n" not in str(error)
    assert refused > 0


def expected_place(message: str) -> bool:
    emptied = (
        "is empty",
        "is on disk",
        "no photo of split",
        "no split",
        "has a caption",
        "holds no",
        "is no data set",
    )
    return bool(PLACE.search(message)) or any(each in message for each in emptied)


@pytest.mark.parametrize(
    "count", [100, pytest.param(3000, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_damage_is_read_or_refused_with_file_and_place(
    kind: str, count: int, tmp_path: Path
) -> None:
    path = KINDS[kind](tmp_path)
    whole = path.read_bytes()
    generator = random.Random(kind)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(count):
        path.write_bytes(damaged(path.suffix, whole, generator))
        began = time.process_time()
        try:
            found: Any = read(kind, tmp_path)
            assert all(isinstance(text, str) for captions in found for text in captions)
            outcomes["read"] += 1
        except DataError as error:
            outcomes["refused"] += 1
            message = str(error)
            assert str(tmp_path) in message, message
            assert "\n" not in message
            assert len(message) < 1000
            assert expected_place(message), message
        assert time.process_time() - began < 5
    assert min(outcomes.values()) > 0, outcomes


def damaged(suffix: str, data: bytes, generator: random.Random) -> bytes:
    if suffix == ".json":
        return mutations.damage_json(data, generator)
    lines = data.splitlines()
    line = generator.randrange(len(lines))
    if suffix == ".jsonl" and generator.random() < 0.7:
        lines[line] = mutations.damage_json(lines[line], generator)
        return b"\n".join(lines)
    return mutations.damage_bytes(data, generator)
