"""--save: every kind of picture from one command."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from programs import ProgramResult

from captioner.cli import output_folder
from captioner.visualization import caption_from_arrays

Run = Callable[..., ProgramResult]


def test_one_command_saves_every_kind(run: Run, photos: list[Path], tmp_path: Path) -> None:
    options = ["--output", "out", "--save", "all", "--json", "--style", "contour"]
    outcome = run("caption", photos[0], *options, "--min-words", 2, "--max-words", 3)
    assert outcome.code == 0, outcome.stderr
    (line,) = outcome.json_lines()
    saved = {path.name for path in (tmp_path / "out").iterdir()}
    told = {Path(path).name for path in line["pictures"]}
    assert saved == told | {"captions.jsonl"}
    kinds = ["attention.png", "attention.pdf", "attention.svg", "attention.gif", "attention.html"]
    kinds += ["attention.npz", "matrix.png", "matrix.pdf", "matrix.svg"]
    assert {f"one.{kind}" for kind in kinds} <= saved
    assert len(saved) == 1 + len(kinds) + len(line["words"])
    with np.load(tmp_path / "out" / "one.attention.npz") as arrays:
        again = caption_from_arrays(dict(arrays)).to_dict()
    assert again == {key: line[key] for key in again}
    with Image.open(tmp_path / "out" / "one.attention.gif") as animation:
        assert animation.n_frames == 1 + len(line["words"])

    words = "--words", "--json", "--max-words", 1
    (shorter,) = run("caption", photos[0], *options[:2], *words).json_lines()
    left = len([*(tmp_path / "out").glob("one.0*")])
    assert left == len(shorter["words"]) < len(line["words"]), "and none of the longer caption"
    # Pictures of an earlier run are not photos.
    for photo in photos:
        photo.rename(tmp_path / "out" / photo.name)
    again_told = run("caption", "out", "--json").json_lines()
    assert [Path(line["image"]).name for line in again_told] == ["one.jpg", "two.png"]


def test_pictures_drawn_by_other_processes_are_the_same(
    run: Run, photos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, submitted, submit = [], [], ProcessPoolExecutor.submit

    def counted(pool: ProcessPoolExecutor, *work: Any) -> Any:
        submitted.append(work)
        return submit(pool, *work)

    monkeypatch.setattr(ProcessPoolExecutor, "submit", counted)
    for folder, least in (("apart", 1), ("here", 100)):
        monkeypatch.setattr(output_folder, "PROCESSES_FROM", least)
        assert run("caption", *photos, "--output", folder, "--words", "--max-words", 3).code == 0
        drawn.append({p.name: p.read_bytes() for p in (tmp_path / folder).glob("*.png")})
    assert len(drawn[0]) > 4
    assert drawn[0] == drawn[1]
    assert len(submitted) == len(photos)
