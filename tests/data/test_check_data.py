"""Checks of a data set: each mistake that is planted is found, and named by its place."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
import tiny
from PIL import Image

from captioner.cli.check_data import main


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tiny.draw_table(tmp_path / "data")


def write(table: Path, *rows: tuple[str, str, str]) -> None:
    with (table / "captions.csv").open("a", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def check(table: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    code = main([str(table), *options])
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
    with Image.open(table / "04.jpg") as image:
        image.resize((30, 24)).save(table / "small.png")
    write(
        table,
        ("broken.jpg", "a broken photo", "train"),
        ("missing.jpg", "a missing photo", "train"),
        ("copy.jpg", "a copy", "val"),
        ("03.jpg", "?!", "train"),
        ("05.jpg", "in both splits", "val"),
        ("small.png", "a small one " + "and long " * 30, "test"),
        ("06.jpg", "twice", "train"),
        ("06.jpg", "twice", "train"),
    )
    code, text = check(table, capsys, "--split", "train", "--split", "val", "--split", "test")
    assert code == 1
    for facts in (
        f"train: 1 of 14 photos are missing: {table / 'missing.jpg'}",
        f"cannot be read: 1, namely {table / 'broken.jpg'}",
        f"{table / '01.jpg'} and {table / 'copy.jpg'}",
        f"'?!' of {table / '03.jpg'}",
        f"1 photos are in train and in val, as {table / '05.jpg'}",
        f"smaller than 32 pixels: 1, namely {table / 'small.png'}",
        "1 of 7 captions have more than 25 words",
        f"1 photos have a caption twice, as {table / '06.jpg'}",
    ):
        assert facts in text, text


def test_copies_in_one_split_are_not_in_two_where_one_has_no_caption(
    tmp_path: Path, capsys
) -> None:
    for name in ("a.jpg", "b.jpg"):
        tiny.photo(1)[0].save(tmp_path / name)
    items = [
        {"split": "train", "filename": name, "sentences": [{"raw": text} for text in texts]}
        for name, texts in (("a.jpg", ["a red disc"]), ("b.jpg", []))
    ]
    (tmp_path / "dataset_flickr8k.json").write_text(json.dumps({"images": items}))
    code, text = check(tmp_path, capsys, "--format", "karpathy", "--split", "train")
    assert code == 1
    assert "there twice (keep one)" in text
    assert "in two splits" not in text


def test_the_first_bad_rows_of_a_table_are_named_by_their_lines(table: Path, capsys) -> None:
    write(table, ("", "no photo", "train"))
    with (table / "captions.csv").open("a") as file:
        file.write("08.jpg,a, comma,train\n" * 20)
    code, text = check(table, capsys)
    assert code == 2
    rows = len((table / "captions.csv").read_text().splitlines())
    for line in range(rows - 20, rows - 10):
        assert f"{table / 'captions.csv'}, line {line}" in text
    assert text.count(", line ") == 10
    assert "21 rows in all" in text


def test_a_table_without_splits_is_checked_once(table: Path, capsys) -> None:
    lines = (table / "captions.csv").read_text().splitlines()
    (table / "captions.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines) + "\n")
    code, text = check(table, capsys)
    assert (code, "all: 18 photos, 36 captions" in text) == (0, True), text


def test_another_language_is_said(table: Path, capsys) -> None:
    path = table / "captions.csv"
    path.write_text(
        path.read_text().replace("square", "квадрат").replace("a ", "один ").replace(" on ", " на ")
    )
    code, text = check(table, capsys)
    assert code == 1
    assert "another language" in text
