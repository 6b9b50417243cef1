"""`captioner batch --precision bfloat16`: a slow one is reported once, and not by every worker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from captioner.batch import local


@pytest.mark.usefixtures("threads_as_workers")
def test_a_slow_bfloat16_is_reported_once_for_all_workers(
    batch: Callable[..., int],
    drawn_photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(local, "bfloat16_speed", lambda folder: 0.5)
    options = ("--shard-size", 2, "--quiet")
    assert batch(drawn_photos, tmp_path / "whole", *options) == 0
    assert capfd.readouterr().err == ""
    assert batch(drawn_photos, tmp_path / "half", *options, "--precision", "bfloat16") == 0
    told = capfd.readouterr().err
    assert told.count("bfloat16") == told.count("2.0 times slower") == 1, told
