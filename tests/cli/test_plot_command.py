"""`captioner plot` on a run that training wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from PIL import Image

from captioner.cli.train import plot


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from captioner.training.run import train

    folder = tmp_path_factory.mktemp("plot")
    table = tiny.draw_table(folder / "photos")
    train(tiny.recipe(table, folder / "run", train__samples=0))
    return folder / "run"


def test_a_run_is_drawn_with_its_curves(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plot([str(run), "--output", str(tmp_path), "--save", "all"]) == 0
    names = ["curves.png", "curves.pdf", "curves.svg"]
    assert capsys.readouterr().out.split() == [str(tmp_path / name) for name in names]
    with Image.open(tmp_path / "curves.png") as curves:
        assert curves.width > 1500
    assert (tmp_path / "curves.pdf").read_bytes().startswith(b"%PDF")


def test_a_run_without_figures_is_reported(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"kind": "tr']))
    assert plot([str(tmp_path)]) == 0, "the last line is being written"
    assert plot([str(tmp_path / "nowhere")]) == 2
    assert "name the folder of a training run" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        plot([str(run), "--save", "jpg"])
