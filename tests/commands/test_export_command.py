"""`captioner export`: half the size, the same captions."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from captioner.pipeline import Captioner

REPOSITORY = Path(__file__).resolve().parents[2]


def export(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "captioner", "export", *map(str, arguments)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_exported_model_is_half_as_large_and_searches_as_it_was_told(
    tiny_model: Path, drawn_photos: Path, tmp_path: Path
) -> None:
    done = export(tiny_model, tmp_path / "small", "--no-repeat-ngram", 2, "--length-penalty", 0.5)
    assert done.returncode == 0, done.stderr
    before, after = (
        (folder / "model.safetensors").stat().st_size for folder in (tiny_model, tmp_path / "small")
    )
    assert after < 0.6 * before
    small = Captioner.from_pretrained(tmp_path / "small", device="cpu")
    assert small.config.decoding.no_repeat_ngram == 2
    assert small.config.decoding.length_penalty == 0.5
    photo = next(path for path in sorted(drawn_photos.iterdir()) if path.suffix != ".csv")
    assert small.caption(photo).words


def test_the_output_of_an_export_is_never_overwritten(tiny_model: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    shutil.copytree(tiny_model, taken)
    refused = export(tiny_model, taken)
    assert refused.returncode == 2
    assert "already exists" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_setting_that_cannot_be_used_is_refused_by_name(tiny_model: Path, tmp_path: Path) -> None:
    refused = export(tiny_model, tmp_path / "small", "--beam-size", 0)
    assert refused.returncode == 2
    assert "decoding.beam_size" in refused.stderr
    assert not (tmp_path / "small").exists()
