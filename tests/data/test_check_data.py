"""Checks of a data set: each mistake that is planted is found, and named by its place."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny
from PIL import Image

from captioner.cli.check_data import main
from captioner.data.image_checks import ImageFacts, duplicates, image_facts
from captioner.errors import ImageError


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
    assert content["splits"]["train"]["scripts"] == {"latin": 1.0}
    with Image.open(sheet) as drawn:
        assert drawn.width > drawn.height > 200


def test_planted_mistakes_are_found_and_named(table: Path, capsys) -> None:
    (table / "broken.jpg").write_bytes((table / "00.jpg").read_bytes()[:300])
    shutil.copy(table / "01.jpg", table / "copy.jpg")
    smooth = Image.blend(Image.radial_gradient("L"), Image.linear_gradient("L").rotate(30), 0.4)
    smooth.convert("RGB").save(table / "smooth.png")
    smooth.resize((400, 300)).save(table / "larger.jpg", quality=60)
    with Image.open(table / "04.jpg") as image:
        image.resize((30, 24)).save(table / "small.png")
    write(
        table,
        ("broken.jpg", "a broken photo", "train"),
        ("missing.jpg", "a missing photo", "train"),
        ("copy.jpg", "a copy", "val"),
        ("smooth.png", "a smooth one", "train"),
        ("larger.jpg", "a larger copy", "train"),
        ("03.jpg", "?!", "train"),
        ("05.jpg", "in both splits", "val"),
        ("small.png", "a small one " + "and long " * 30, "test"),
        ("06.jpg", "twice", "train"),
        ("06.jpg", "twice", "train"),
    )
    code, text = check(table, capsys, "--split", "train", "--split", "val", "--split", "test")
    assert code == 1
    for facts in (
        f"train: 1 of 16 photos are missing: {table / 'missing.jpg'}",
        f"cannot be read: 1, namely {table / 'broken.jpg'}",
        f"{table / '01.jpg'} and {table / 'copy.jpg'}, same file",
        f"{table / 'smooth.png'} and {table / 'larger.jpg'}, near duplicates",
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


def test_every_bad_row_of_a_table_is_named_by_its_line(table: Path, capsys) -> None:
    write(table, ("", "no photo", "train"))
    with (table / "captions.csv").open("a") as file:
        file.write("08.jpg,a, comma,train\n" * 20)
    code, text = check(table, capsys)
    assert code == 2
    rows = len((table / "captions.csv").read_text().splitlines())
    for line in range(rows - 20, rows - 10):
        assert f"mend: {table / 'captions.csv'}, line {line}" in text
    assert text.count("mend: ") == 10
    assert "21 rows in all" in text


def test_a_table_without_splits_is_checked_once(table: Path, capsys) -> None:
    lines = (table / "captions.csv").read_text().splitlines()
    (table / "captions.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines) + "\n")
    code, text = check(table, capsys)
    assert (code, "all: 18 photos, 36 captions" in text) == (0, True), text


def test_a_root_that_no_file_can_have_is_one_sentence(capsys) -> None:
    code, text = check(Path("x" * 300), capsys)
    assert code == 2
    assert "there is no file or folder" in text


def test_another_language_is_said(table: Path, capsys) -> None:
    path = table / "captions.csv"
    path.write_text(
        path.read_text().replace("square", "квадрат").replace("a ", "один ").replace(" on ", " на ")
    )
    code, text = check(table, capsys)
    assert code == 1
    assert "another language" in text
    assert "cyrillic" in text


def test_different_photos_are_no_duplicates(tmp_path: Path) -> None:
    for number in range(40):
        tiny.photo(number)[0].save(tmp_path / f"{number}.png")
    facts = {path: image_facts(path) for path in sorted(tmp_path.glob("*.png"))}
    assert duplicates(facts) == []
    (tmp_path / "no.png").write_bytes(b"no")
    with pytest.raises(ImageError):
        image_facts(tmp_path / "no.png")


def test_near_duplicates_may_differ_in_a_bit_of_each_quarter_of_their_hashes() -> None:
    thumbnail = np.full((8, 9), 100, dtype=np.uint8)
    other = thumbnail.copy()
    other[::2, 8] = 101
    facts = {
        Path(name): ImageFacts(90, 80, digest=name, thumbnail=grey)
        for name, grey in (("a", thumbnail), ("b", other))
    }
    assert duplicates(facts) == [(Path("a"), Path("b"), "near duplicates")]
