"""Pictures that other processes draw while this one captions."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny

from captioner.cli import output_folder


def test_pictures_drawn_by_other_processes_are_the_same(
    caption, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(3):
        tiny.photo(number)[0].save(tmp_path / "photos" / f"{number}.png")
    drawn = []
    for folder, least in (("apart", 1), ("here", 100)):
        monkeypatch.setattr(output_folder, "PROCESSES_FROM", least)
        assert caption("photos", "--output", folder, "--words").code == 0
        drawn.append({p.name: p.read_bytes() for p in (tmp_path / folder).glob("*.png")})
    assert len(drawn[0]) > 6
    assert drawn[0] == drawn[1]
