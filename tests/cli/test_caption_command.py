"""`caption.py` as a user runs it, with good photos and bad ones, good options and bad ones."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
from PIL import Image
from programs import REPOSITORY, Commands, ProgramResult, Programs, Runs

from captioner import Captioner

Caption = Callable[..., ProgramResult]


def captions_by(runs: Runs, model: Path, folder: Path) -> Caption:
    """Runs caption.py with a model, standing in a folder."""

    def run(*arguments: object, **environment: str) -> ProgramResult:
        options = ["--checkpoint", model, "--device", "cpu"]
        if "--checkpoint" in arguments or "--model" in arguments:
            options = options[2:]
        return runs.run("caption.py", *options, *arguments, cwd=folder, **environment)

    return run


@pytest.fixture
def caption(commands: Commands, tiny_model: Path, tmp_path: Path) -> Caption:
    """Runs caption.py with the tiny model in this process."""
    return captions_by(commands, tiny_model, tmp_path)


@pytest.fixture
def program(programs: Programs, tiny_model: Path, tmp_path: Path) -> Caption:
    """Runs caption.py with the tiny model in a process of its own, as a user does."""
    return captions_by(programs, tiny_model, tmp_path)


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Three photos in a folder of their own."""
    folder = tmp_path / "photos"
    folder.mkdir()
    paths = [folder / name for name in ("one.jpg", "three.png", "two.jpeg")]
    for number, path in enumerate(paths):
        tiny.photo(number)[0].save(path)
    return paths


def as_json(outcome: ProgramResult) -> list[dict[str, Any]]:
    return [json.loads(line) for line in outcome.stdout.splitlines()]


def by_name(folder: Path) -> list[str]:
    """Names of the files in a folder, without the journal that every output folder gets."""
    return sorted(path.name for path in folder.iterdir() if path.name != "captions.jsonl")


# ------------------------------------------------------------------------------------ good photos


def test_a_photo_is_captioned_on_one_line(program: Caption, photos: list[Path]) -> None:
    outcome = program(photos[0])
    assert outcome.code == 0
    assert re.fullmatch(rf"{re.escape(str(photos[0]))}: [\w' -]+\n", outcome.stdout)
    assert outcome.stderr == "", "not a word when all is well"


def test_photos_and_folders_are_captioned_in_order(
    program: Caption, photos: list[Path], tmp_path: Path
) -> None:
    tiny.photo(4)[0].save(tmp_path / "first.jpg")
    (photos[0].parent / "notes.txt").write_text("no photo")
    (photos[0].parent / ".hidden.jpg").write_bytes(b"no photo")
    (photos[0].parent / "folder.jpg").mkdir()
    outcome = program("first.jpg", "photos", photos[1])
    assert outcome.code == 0, outcome.stderr
    named = [line.partition(":")[0] for line in outcome.stdout.splitlines()]
    inside = [f"photos/{path.name}" for path in photos]
    assert named == ["first.jpg", *inside, str(photos[1])]
    assert outcome.stderr.startswith("1 file skipped: .txt; 1 folder skipped: add --recursive")
    assert program("photos", "--quiet").stderr == ""


def test_json_has_the_promised_fields(caption: Caption, photos: list[Path]) -> None:
    outcome = caption(*photos, "--json")
    assert outcome.code == 0
    lines = as_json(outcome)
    assert [line["image"] for line in lines] == [str(path) for path in photos]
    for line in lines:
        promised = {"image", "caption", "words", "log_probs", "end_log_prob", "beta", "confidence"}
        assert line.keys() == promised
        assert line["confidence"] is None, "a model without a calibrator"
        assert line["caption"] == " ".join(line["words"])
        assert len(line["words"]) == len(line["log_probs"]) == len(line["beta"]) > 0
        assert all(value <= 0 for value in line["log_probs"])
        assert all(0 <= value <= 1 for value in line["beta"])


def test_the_command_captions_as_the_python_interface_does(
    caption: Caption, photos: list[Path], tiny_model: Path
) -> None:
    captioner = Captioner.from_pretrained(tiny_model, device="cpu")
    together = as_json(caption(*photos, "--json"))
    for path, line in zip(photos, together, strict=True):
        found = captioner.caption(path)
        assert line["words"] == found.words
        assert line["log_probs"] == pytest.approx(found.log_probs.tolist(), abs=1e-4)
        assert line["beta"] == pytest.approx(found.beta.tolist(), abs=1e-4)
    assert len({line["caption"] for line in together}) > 1


def test_the_search_can_be_set(caption: Caption, photos: list[Path], tiny_model: Path) -> None:
    captioner = Captioner.from_pretrained(tiny_model, device="cpu")
    for options, settings in (
        (["--beam-size", 1], {"beam_size": 1}),
        (["--beam-size", 50, "--max-words", 2], {"beam_size": 50, "max_words": 2}),
        (["--length-penalty", 3], {"length_penalty": 3.0}),
    ):
        found = [line["caption"] for line in as_json(caption(*photos, "--json", *options))]
        assert found == [captioner.caption(path, **settings).text for path in photos]


def test_names_with_spaces_and_letters_of_any_script_are_kept(
    program: Caption, photos: list[Path], tmp_path: Path
) -> None:
    names = ["a photo with spaces.jpg", "Größe.JPG", "фото.jpg", "写真.jpg", "-dash.jpg", "🐕.jpg"]
    for name in names:
        shutil.copy(photos[0], tmp_path / name)
    outcome = program("--json", "--output", "out", "--", *names)
    assert outcome.code == 0, outcome.stderr
    assert [line["image"] for line in as_json(outcome)] == names
    assert by_name(tmp_path / "out") == sorted(f"{Path(n).stem}.attention.png" for n in names)


# -------------------------------------------------------------------------------------- pictures


def test_sheets_are_drawn_as_png_under_the_photo_s_name(
    program: Caption, photos: list[Path], tmp_path: Path
) -> None:
    outcome = program("photos", "--output", "deep/out")
    assert outcome.code == 0, outcome.stderr
    names = ["one.attention.png", "three.attention.png", "two.attention.png"]
    assert by_name(tmp_path / "deep" / "out") == names
    for name in names:
        with Image.open(tmp_path / "deep" / "out" / name) as sheet:
            assert sheet.format == "PNG"
            assert sheet.mode == "RGB"
            assert min(sheet.size) > 200
            assert len(sheet.getcolors(1 << 24)) > 500
        assert f"deep/out/{name}" in outcome.stdout


def test_words_are_drawn_one_by_one(caption: Caption, photos: list[Path], tmp_path: Path) -> None:
    outcome = caption(photos[0], "--output", "out", "--words", "--json")
    (line,) = as_json(outcome)
    expected = [f"one.{n:02d}-{word}.png" for n, word in enumerate(line["words"], start=1)]
    assert by_name(tmp_path / "out") == sorted(["one.attention.png", *expected])
    assert line["pictures"] == [f"out/{name}" for name in ("one.attention.png", *expected)]
    for name in expected:
        with Image.open(tmp_path / "out" / name) as picture:
            assert picture.format == "PNG"


def test_a_folder_that_is_captioned_into_itself_twice_keeps_its_photos(
    caption: Caption, photos: list[Path], tmp_path: Path
) -> None:
    first = caption("photos", "--output", "photos", "--words")
    names = by_name(tmp_path / "photos")
    second = caption("photos", "--output", "photos", "--words")
    assert first.code == second.code == 0, second.stderr
    assert second.stdout == first.stdout
    assert by_name(tmp_path / "photos") == names


def test_an_output_that_cannot_be_written_is_said_before_the_first_caption(
    program: Caption, photos: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("mine")
    outcome = program(*photos[:2], "--output", "out")
    assert "out" in outcome.sentence()
    assert outcome.stdout == ""
    assert (tmp_path / "out").read_text() == "mine"


# ------------------------------------------------------------------------------------- bad photos


def test_a_bad_photo_among_good_ones_is_named_once_and_the_others_are_captioned(
    program: Caption, photos: list[Path], tmp_path: Path
) -> None:
    (photos[0].parent / "bad.jpg").write_bytes(photos[0].read_bytes()[:300])
    (photos[0].parent / "text.png").write_text("no photo")
    outcome = program("photos", "missing.jpg", photos[0], "--json", "--output", "out")
    assert outcome.code == 1
    assert "Traceback" not in outcome.stderr
    named = [line.partition(": ")[0] for line in outcome.stderr.splitlines()]
    assert sorted(named) == ["missing.jpg", "photos/bad.jpg", "photos/text.png"]
    assert "missing.jpg: no such file" in outcome.stderr
    images = [line["image"] for line in as_json(outcome)]
    assert images == [f"photos/{path.name}" for path in photos] + [str(photos[0])]
    assert len(by_name(tmp_path / "out")) == 3


def test_a_folder_without_photos_is_named(caption: Caption, photos: list[Path]) -> None:
    (photos[0].parent.parent / "empty").mkdir()
    outcome = caption("empty", photos[0])
    assert outcome.code == 1
    assert outcome.stderr == "empty: the folder holds no photos\n"
    assert len(outcome.stdout.splitlines()) == 1
    alone = caption("empty")
    assert alone.code == 2
    assert alone.stdout == ""
    assert len(alone.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("list.txt", "captioner batch list.txt --output DIR"),
        ("table.csv", "captioner batch table.csv --output DIR"),
        ("shard.tar", "captioner batch shard.tar --output DIR"),
        ("photos.zip", "unpack it and give its folder"),
        ("https://example.org//dog.jpg", "--allow-urls"),
        ("s3://bucket/dog.jpg", "captioner batch reads"),
        ("index.html", "add --write html"),
    ],
)
def test_lists_archives_pages_and_addresses_name_what_reads_them(
    caption: Caption, photos: list[Path], tmp_path: Path, name: str, remedy: str
) -> None:
    if "//" not in name:
        (tmp_path / name).write_text("photos/one.jpg")
    outcome = caption(name, photos[0])
    assert outcome.code == 1
    assert outcome.stderr.startswith(f"{name}: is a")
    assert remedy in outcome.stderr
    assert len(outcome.stdout.splitlines()) == 1


def test_an_address_is_fetched_when_that_is_allowed(
    caption: Caption, photos: list[Path], tmp_path: Path
) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        site = f"http://127.0.0.1:{server.server_port}"
        given = (f"{site}/photos/one.jpg?size=2", f"{site}/none.jpg", "--json", "--output", "out")
        outcome = caption(*given, "--allow-urls")
        server.shutdown()
    assert outcome.code == 1
    assert f"{site}/none.jpg: cannot be fetched: the site answers 404" in outcome.stderr
    (fetched,) = as_json(outcome)
    (local,) = as_json(caption(photos[0], "--json"))
    assert fetched["image"] == given[0]
    assert fetched["words"] == local["words"]
    assert by_name(tmp_path / "out") == [Path(path).name for path in fetched["pictures"]]


# --------------------------------------------------------------------------------- several captions


def test_several_captions_are_those_of_python_best_first(
    caption: Caption, photos: list[Path], tiny_model: Path
) -> None:
    captioner = Captioner.from_pretrained(tiny_model, device="cpu")
    (expected,) = captioner.n_best([photos[0]], 7, beam_size=7)
    (line,) = as_json(caption(photos[0], "--num-captions", 7, "--json"))
    assert [each["caption"] for each in line["captions"]] == [each.text for each in expected]
    assert line["caption"] == line["captions"][0]["caption"]
    for each, python in zip(line["captions"], expected, strict=True):
        assert each["log_prob"] == pytest.approx(python.log_prob, abs=1e-4)
        assert each["words"] == python.words
    text = caption(photos[0], "--num-captions", 3).stdout.splitlines()
    assert [line[:5] for line in text[1:]] == ["  2. ", "  3. "]
    (one,) = as_json(caption(photos[0], "--num-captions", 1, "--min-words", 9, "--json"))
    assert len(one["captions"]) == 1
    assert len(one["words"]) >= 9


def test_captions_are_sampled_and_a_seed_repeats_them(caption: Caption, photos: list[Path]) -> None:
    options = ("--sample", "--num-captions", 3, "--temperature", 2, "--top-p", 0.9, "--json")
    first, again, other = (
        [line["captions"] for line in as_json(caption(*photos, *options, "--seed", seed))]
        for seed in (1, 1, 2)
    )
    assert first == again != other
    assert len({each["caption"] for each in first[0]}) > 1


def test_json_is_json_in_every_locale(tmp_path: Path, tiny_model: Path) -> None:
    tiny.photo(0)[0].save(tmp_path / "hündin \U0001f415.jpg")
    command = [sys.executable, "-m", "captioner", "caption", tmp_path, "--json"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(REPOSITORY)}
    found = subprocess.run(command, capture_output=True, check=True, env=environment)
    line = json.loads(found.stdout.decode("ascii"))
    assert line["image"] == str(tmp_path / "hündin \U0001f415.jpg")


# ---------------------------------------------------------------------------------- unusable calls


@pytest.mark.parametrize(
    "options",
    [
        ["--beam-size", "0"],
        ["--min-confidence", "0.5"],  # the tiny model has no calibrator
        ["--resume"],
        ["--temperature", "2"],
        ["--sample", "--beam-size", "3"],
        ["--min-words", "30", "--max-words", "30"],
        ["--num-captions", "3", "--beam-size", "2"],
        ["--device", "banana"],
        ["--model", "no_such_model"],
        ["--checkpoint", "photos/one.jpg"],
    ],
    ids=" ".join,
)
def test_an_option_that_is_wrong_is_exit_code_2_without_a_traceback(
    caption: Caption, photos: list[Path], options: list[str]
) -> None:
    outcome = caption(photos[0], *options)
    assert "Traceback" not in outcome.stderr, outcome.stderr
    assert outcome.code == 2
    assert outcome.stdout == ""
    assert outcome.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--device", "cuda:99"),
        ("--layer", "3"),
    ],
    ids=" ".join,
)
def test_a_call_that_is_refused_leaves_no_folder(
    caption: Caption, photos: list[Path], tmp_path: Path, options: tuple[str, ...]
) -> None:
    assert caption(photos[0], "--output", "new/out", *options).code == 2
    assert not (tmp_path / "new").exists()


# ------------------------------------------------------------------- real processes and real pipes


def test_it_runs_as_a_script_and_a_reader_that_goes_away_leaves_no_traceback(
    drawn_photos: Path,
) -> None:
    """With the bundled model, whose graphs spare the import of PyTorch."""
    command = shlex.join([sys.executable, "caption.py", str(drawn_photos), "--json"])
    found = subprocess.run(
        ["bash", "-c", f"{command} | head -n 1"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stderr == "1 file skipped: .csv\n"
    assert json.loads(found.stdout)["image"] == str(drawn_photos / "00.jpg")


def test_captioning_needs_no_home_and_no_network(
    program: Caption, photos: list[Path], tmp_path: Path
) -> None:
    nowhere = str(tmp_path / "no home")
    hidden = {"HOME": nowhere, "TORCH_HOME": nowhere, "HF_HOME": nowhere, "HF_HUB_OFFLINE": "1"}
    assert program(photos[0], **hidden).code == 0
    assert not Path(nowhere).exists()
