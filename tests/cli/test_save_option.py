"""--save: every kind of picture from one command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
from PIL import Image
from programs import Commands, ProgramResult, Runs

from captioner.visualization import caption_from_arrays


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "one.png", tmp_path / "two.png"]
    for number, path in enumerate(paths, start=1):
        tiny.photo(number)[0].save(path)
    return paths


def run(commands: Runs, cwd: Path, *arguments: object) -> ProgramResult:
    return commands.run("captioner", *arguments, "--device", "cpu", cwd=cwd)


def test_one_command_saves_every_kind(
    commands: Commands, tiny_model: Path, photos: list[Path], tmp_path: Path
) -> None:
    options = ["--checkpoint", tiny_model, "--output", "out", "--save", "all", "--json"]
    outcome = run(commands, tmp_path, "caption", *photos, *options, "--style", "contour")
    assert outcome.code == 0, outcome.stderr
    lines = [json.loads(line) for line in outcome.stdout.splitlines()]
    saved = {path.name for path in (tmp_path / "out").iterdir()}
    told = {Path(path).name for line in lines for path in line["pictures"]}
    assert saved == told | {"captions.jsonl"}
    kinds = ["attention.png", "attention.pdf", "attention.svg", "attention.gif", "attention.html"]
    kinds += ["attention.npz", "matrix.png", "matrix.pdf", "matrix.svg"]
    assert {f"one.{kind}" for kind in kinds} <= saved
    assert len(saved) == 1 + 2 * len(kinds) + sum(len(line["words"]) for line in lines)
    with np.load(tmp_path / "out" / "one.attention.npz") as arrays:
        again = caption_from_arrays(dict(arrays)).to_dict()
    assert again == {key: lines[0][key] for key in again}
    with Image.open(tmp_path / "out" / "one.attention.gif") as animation:
        assert animation.n_frames == 1 + len(lines[0]["words"])

    # Pictures of an earlier run are not photos.
    for photo in photos:
        photo.rename(tmp_path / "out" / photo.name)
    again_told = run(commands, tmp_path, "caption", "out", "--checkpoint", tiny_model, "--json")
    assert [Path(json.loads(line)["image"]).name for line in again_told.stdout.splitlines()] == [
        "one.png",
        "two.png",
    ]


def test_a_caption_that_is_brought_gets_the_same_kinds(
    commands: Commands, tiny_model: Path, photos: list[Path], tmp_path: Path
) -> None:
    options = ["--checkpoint", tiny_model, "--output", "out", "--save", "html,npz"]
    outcome = run(commands, tmp_path, "score", photos[0], "a red disc", *options)
    assert outcome.code == 0, outcome.stderr
    saved = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert saved == ["one.attention.html", "one.attention.npz"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--save", "png"], "argument --save: needs --output"),
        (["--output", "out", "--save", "png,jpg"], "'jpg' is none of png, pdf"),
        (["--output", "out", "--save", "gif", "--compare", "soft", "hard"], "gif shows one model"),
        (["--output", "out", "--opacity", "2"], "'2' is not a number from 0 to 1"),
    ],
)
def test_an_unusable_save_option_is_refused_at_once(
    commands: Commands, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    outcome = run(commands, tmp_path, "caption", "photo.jpg", *arguments)
    assert outcome.code == 2
    assert problem in outcome.stderr


def test_captioning_imports_no_pyplot(photos: list[Path], tmp_path: Path) -> None:
    """With a bundled model, whose graphs need no torch, which would take longer than the test."""
    import subprocess
    import sys

    script = (
        "import sys; from captioner.cli.caption import main; "
        f"code = main([{str(photos[0])!r}, '--output', {str(tmp_path / 'out')!r}, '--save', 'png,html,gif']); "
        "heavy = {'matplotlib.pyplot', 'matplotlib.figure', 'tensorboard'} & set(sys.modules); "
        "print(code, sorted(heavy))"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert outcome.stdout.splitlines()[-1] == "0 []"
