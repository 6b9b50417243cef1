"""`captioner export`: half the size, the same captions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from programs import ProgramResult, Programs, Runs

from captioner.captioner import Captioner
from captioner.cli.export import main


def export(commands: Runs, *arguments: object) -> ProgramResult:
    return commands.run("captioner", "export", *arguments)


def test_an_exported_model_is_half_as_large_and_keeps_the_given_search_settings(
    programs: Programs, tiny_model: Path, drawn_photos: Path, tmp_path: Path
) -> None:
    options = ["--no-repeat-ngram", 2, "--length-penalty", 0.5]
    done = export(programs, tiny_model, tmp_path / "small", *options)
    assert done.code == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'small'}\n"
    before, after = (
        (folder / "model.safetensors").stat().st_size for folder in (tiny_model, tmp_path / "small")
    )
    assert after < 0.6 * before
    small = Captioner.from_pretrained(tmp_path / "small", device="cpu")
    assert small.config.decoding.no_repeat_ngram == 2
    assert small.config.decoding.length_penalty == 0.5
    photo = next(path for path in sorted(drawn_photos.iterdir()) if path.suffix != ".csv")
    assert small.caption(photo).words


def test_an_export_that_fails_leaves_no_folder(
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Or the same command, once what it lacks is there, would refuse it."""
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert main([str(tiny_model), str(tmp_path / "small")]) == 2
    assert "onnxscript, which is not installed" in capsys.readouterr().err
    assert not (tmp_path / "small").exists()
