"""captioner caption on folders: what it skips, goes on with, and never overwrites in silence."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from PIL import Image
from programs import Commands, ProgramResult, Programs

from captioner.batch.inputs import input_rows
from captioner.cli.caption import caption as main
from captioner.data.image_finder import list_files, photos_in, skipped_sentence
from captioner.data.images import open_image, register_heif
from captioner.errors import ImageError
from captioner.files import JOURNAL, read_journal


@pytest.fixture
def folder(photos: list[Path]) -> Path:
    """Two photos, and one in a folder inside."""
    folder = photos[0].parent
    (folder / "deeper").mkdir()
    tiny.photo(2)[0].save(folder / "deeper" / "three.jpg")
    return folder


def names_in(outcome: ProgramResult) -> list[str]:
    return [line["image"] for line in outcome.json_lines()]


def test_folders_inside_are_said_to_be_skipped_or_gone_into(caption, folder: Path) -> None:
    (folder / "film.mp4").write_bytes(b"no matter")
    flat = caption("photos", "--json")
    assert names_in(flat) == ["photos/one.jpg", "photos/two.png"]
    assert "skipped files: 1 (.mp4)" in flat.stderr
    assert "--recursive" in flat.stderr
    options = ("photos", "--json", "--recursive", "--max-words", 3)
    drawn = ("--output", "photos/drawn", "--words")
    deep, again = caption(*options, *drawn), caption(*options, *drawn)
    assert names_in(deep) == names_in(again) == [*names_in(flat), "photos/deeper/three.jpg"]
    assert "folder" not in deep.stderr
    photos = {folder / "one.jpg", folder / "two.png", folder / "deeper" / "three.jpg"}
    assert len(list((folder / "drawn").glob("*.png"))) > 6
    assert caption(*options, "--output", "photos/drawn").code == 0
    assert names_in(caption(*options)) == names_in(deep), "no earlier word pictures"
    images, others = list_files(folder)  # of a data set
    assert (set(images), others) == (photos, [folder / "film.mp4"])
    assert {path for _, path in input_rows(str(folder))} == set(map(str, photos))  # of `batch`
    assert [path for _, path in input_rows(f"{folder}/*.png")] == [str(folder / "two.png")]


def test_links_to_folders_are_followed_but_not_in_circles(photos: list[Path]) -> None:
    folder, elsewhere = photos[0].parent, photos[0].parent.parent / "elsewhere"
    elsewhere.mkdir()
    photos[0].rename(elsewhere / "one.jpg")
    (folder / "album").symlink_to(elsewhere)
    (folder / "one.jpg").symlink_to(elsewhere / "one.jpg")
    (elsewhere / "back").symlink_to(folder)
    expected = [str(folder / name) for name in ("one.jpg", "two.png", "album/one.jpg")]
    found = photos_in(folder, Counter(), pytest.fail, recursive=True)
    assert list(map(str, found)) == [path for _, path in input_rows(str(folder))] == expected


def test_resume_skips_finished_photos_and_still_lists_them_in_the_table(
    caption, folder: Path, tmp_path: Path
) -> None:
    options = ("photos", "-r", "--output", "out", "--json", "--write", "csv", "--save", "png")
    assert caption(*options).code == 0
    records = read_journal(tmp_path / "out" / JOURNAL)
    assert set(records) == {str(path) for path in folder.rglob("*.*") if path.is_file()}
    first = (tmp_path / "out" / "captions.csv").read_text()

    nothing = caption(*options, "--resume")
    assert (nothing.code, nothing.stdout) == (0, "")
    assert "3 of 3 photos were done before" in nothing.stderr
    assert (tmp_path / "out" / "captions.csv").read_text() == first

    tiny.photo(7)[0].save(folder / "one.jpg")  # another photo now
    (tmp_path / "out" / "two.attention.png").unlink()
    assert names_in(caption(*options, "--resume")) == ["photos/one.jpg", "photos/two.png"]
    assert len(names_in(caption(*options, "--resume", "--max-words", 2))) == 3


def test_a_list_of_photos_is_for_batch(caption, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("photos/one.jpg\n")
    outcome = caption("list.txt")
    assert outcome.code == 2
    assert "captioner batch list.txt --output DIR reads lists" in outcome.stderr


def test_ctrl_c_twice_ends_a_run_that_draws_and_resume_does_the_rest(
    programs: Programs, tiny_model: Path, photo: Path, tmp_path: Path
) -> None:
    (tmp_path / "many").mkdir()
    for number in range(16):
        shutil.copy(photo, tmp_path / f"many/{number}.jpg")
    command = ["captioner", "caption", tmp_path / "many", "--checkpoint", tiny_model, "--json"]
    command += ["--output", tmp_path / "out"]
    run = programs.start(*command)
    run.wait_until(lambda: list(tmp_path.glob("out/*.png")) or run.poll() is not None)
    for _ in range(2):
        run.signal(signal.SIGINT)
        time.sleep(0.005)
    outcome = run.wait()
    assert outcome.code == 130
    assert outcome.stderr.endswith("the same command with --resume does the rest\ninterrupted\n")
    rest = programs.run(*command, "--resume").json_lines()
    assert len(rest) + len(outcome.json_lines()) in (16, 17)  # one was printed and not recorded


def test_a_journal_that_a_killed_run_cut_short_is_read(
    caption, folder: Path, tmp_path: Path
) -> None:
    options = ("photos", "--output", "out", "--json")
    assert caption(*options).code == 0
    journal = tmp_path / "out" / JOURNAL
    first, second = journal.read_text().splitlines()
    for cut in (40, 4):
        journal.write_text(f"{first}\n{second[:cut]}")
        assert names_in(caption(*options, "--resume")) == ["photos/two.png"]
    assert len(journal.read_text().splitlines()) == 2, "it is written anew"


def test_a_photo_can_come_on_standard_input(
    tiny_model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    options = ["--checkpoint", str(tiny_model), "--device", "cpu", "--json"]
    with (folder / "one.jpg").open("rb") as file:
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=file))
        assert main(["-", *options, "--write", "txt"]) == 1
    outcome = capsys.readouterr()
    assert "-: no txt is written" in outcome.err
    piped = json.loads(outcome.out)
    assert piped["image"] == "-"
    assert main([str(folder / "one.jpg"), *options]) == 0
    assert piped["words"] == json.loads(capsys.readouterr().out)["words"]


def test_a_withheld_caption_is_neither_drawn_nor_written(
    commands: Commands, folder: Path, tmp_path: Path
) -> None:
    options = ("--device", "cpu", "--write", "xmp", "--save", "png,html", "--output", "out")

    def run(*further: object) -> ProgramResult:
        return commands.run("captioner", "caption", "photos", *options, *further, cwd=tmp_path)

    outcome = run("--min-confidence", 1)
    assert outcome.code == 0, outcome.stderr
    assert outcome.stdout.count(": no caption (confidence 0.") == 2
    assert os.listdir(tmp_path / "out") == ["captions.jsonl"]
    assert not list(folder.glob("*.xmp"))
    assert run("--min-confidence", 1, "--resume").stdout == ""
    assert not list((tmp_path / "out").glob("*.html"))
    shown = run("--min-confidence", 0, "--resume")
    assert re.search(r": [A-Za-z ]+ \(confidence 0\.\d\d(, below 0\.\d\d: unsure)?\)", shown.stdout)
    assert (tmp_path / "out" / "one.attention.png").exists(), "another threshold is another run"


@pytest.fixture
def without_pillow_heif(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if it were not installed."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.setattr(Image, "OPEN", {k: v for k, v in Image.OPEN.items() if k != "HEIF"})
    monkeypatch.setattr(Image, "ID", [name for name in Image.ID if name != "HEIF"])
    register_heif.cache_clear()
    yield
    register_heif.cache_clear()


def test_heic_names_the_missing_package(without_pillow_heif: None, folder: Path) -> None:
    file = folder / "phone.heic"
    file.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"pixels")
    with pytest.raises(ImageError, match="pillow-heif"):
        open_image(file)
    skipped: Counter[str] = Counter()
    assert file not in list(photos_in(folder, skipped, pytest.fail))
    assert "1 (.heic); to read HEIC, install pillow-heif" in skipped_sentence(skipped)
