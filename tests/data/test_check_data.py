"""Checks of a data set: each mistake that is planted is found, and named by its place."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
import tiny
from PIL import Image

from captioner.cli.check_data import check_data


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tiny.draw_table(tmp_path / "data")


def write(table: Path, *rows: tuple[str, str, str]) -> None:
    with (table / "captions.csv").open("a", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def check(table: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    code = check_data([str(table), *options])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_a_clean_table_has_nothing_to_mend(table: Path, tmp_path: Path, capsys) -> None:
    report, sheet = tmp_path / "report.json", tmp_path / "sheet.jpg"
    code, text = check(table, capsys, "--output", str(report), "--contact-sheet", str(sheet))
    content = json.loads(report.read_text())
    # drawn captions are of twelve words that the bundled models know
    assert content["mend"] == [], text
    assert code == 0
    assert content["splits"]["train"]["photos"] == 12
    assert content["splits"]["val"]["captions"] == 6
    with Image.open(sheet) as drawn:
        assert drawn.width > drawn.height > 200


def test_planted_mistakes_are_found_and_named(table: Path, capsys) -> None:
    (table / "broken.jpg").write_bytes((table / "00.jpg").read_bytes()[:300])
    shutil.copy(table / "01.jpg", table / "copy.jpg")
    shutil.copy(table / "02.jpg", table / "same split.jpg")
    with Image.open(table / "04.jpg") as image:
        image.resize((30, 24)).save(table / "small.png")
    write(
        table,
        ("broken.jpg", "a broken photo", "train"),
        ("missing.jpg", "a missing photo", "train"),
        ("copy.jpg", "a copy", "val"),
        ("same split.jpg", "", "train"),
        ("03.jpg", "?!", "train"),
        ("05.jpg", "in both splits", "val"),
        ("small.png", "a small one " + "and long " * 30, "test"),
        ("06.jpg", "twice", "train"),
        ("06.jpg", "twice", "train"),
    )
    code, text = check(table, capsys, "--split", "train", "--split", "val", "--split", "test")
    assert code == 1
    for facts in (
        f"train: 1 of 15 photos are missing: {table / 'missing.jpg'}",
        f"cannot be read: 1, namely {table / 'broken.jpg'}",
        f"in two splits under two names (keep one): 1, namely {table / '01.jpg'} and {table}/copy",
        f"there twice (keep one): 1, namely {table / '02.jpg'} and {table / 'same split.jpg'}",
        f"'?!' of {table / '03.jpg'}",
        f"1 photos are in train and in val, as {table / '05.jpg'}",
        f"smaller than 32 pixels: 1, namely {table / 'small.png'}",
        "1 of 7 captions have more than 25 words",
        f"1 photos have a caption twice, as {table / '06.jpg'}",
    ):
        assert facts in text, text
