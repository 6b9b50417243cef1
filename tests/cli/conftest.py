"""Photos, and `captioner caption` and `captioner score` with the tiny model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
from programs import Commands, ProgramResult

Run = Callable[..., ProgramResult]


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.jpg"
    tiny.photo(1)[0].save(path)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Two photos in the folder `photos`, by name."""
    folder = tmp_path / "photos"
    folder.mkdir()
    paths = [folder / "one.jpg", folder / "two.png"]
    for number, path in enumerate(paths):
        tiny.photo(number)[0].save(path)
    return paths


@pytest.fixture
def run(commands: Commands, tiny_model: Path, tmp_path: Path) -> Run:
    """Run a command with the tiny model, standing in `tmp_path`."""

    def command(name: str, *arguments: object) -> ProgramResult:
        options = () if "--compare" in arguments else ("--checkpoint", tiny_model)
        options = (*options, "--device", "cpu")
        return commands.run("captioner", name, *options, *arguments, cwd=tmp_path)

    return command


@pytest.fixture
def caption(run: Run) -> Run:
    """Run `captioner caption` with the tiny model, standing in `tmp_path`."""
    return lambda *arguments: run("caption", *arguments)
