"""Threads follow the cores that the process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from captioner.runtime.parallel import usable_cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.parametrize(
    ("content", "cores"),
    [("max 100000", 8), ("200000 100000", 2), ("250000 100000", 3), ("50000 100000", 1), ("?", 8)],
)
def test_a_quota_of_version_2_counts(content: str, cores: int, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(content + "\n")
    assert usable_cores(tmp_path) == cores


def test_a_given_number_of_threads_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_cores(tmp_path) == 8
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    assert usable_cores(tmp_path) == 4
