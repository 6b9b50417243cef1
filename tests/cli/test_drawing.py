"""Pictures that other processes draw while this one captions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captioner.cli.drawing import Drawer, Drawing, Settings
from captioner.types import Caption, Geometry
from captioner.visualization import OverlayStyle


def drawing(number: int) -> Drawing:
    maps = np.random.default_rng(number).dirichlet(np.full(63, 0.3), size=2).reshape(2, 7, 9)
    caption = Caption(
        words=["a", f"dog{number}"],
        maps=maps.astype(np.float32),
        log_probs=np.log(np.array([0.5, 0.2], dtype=np.float32)),
        beta=None,
        geometry=Geometry(40, 30, 0, 0, 40, 30),
    )
    named = [("model", caption)]
    return Drawing(f"photo{number}", "photo.jpg", Image.new("RGB", (40, 30)), named, named)


def settings(folder: Path) -> Settings:
    return Settings(("png", "words"), folder, OverlayStyle())


@pytest.fixture
def processes(tmp_path: Path):
    drawer = Drawer(settings(tmp_path / "apart"))
    drawer.start()
    yield drawer
    drawer.stop()


def test_processes_draw_the_same_pictures_and_name_their_files(
    processes: Drawer, tmp_path: Path
) -> None:
    here = Drawer(settings(tmp_path / "here"))
    waiting = [processes.begin(drawing(number)) for number in range(3)]
    for number, finish in enumerate(waiting):
        files, problem = finish()
        assert problem is None
        expected, _ = here.begin(drawing(number))()
        names = [f"photo{number}.{kind}" for kind in ("attention", "01-a", f"02-dog{number}")]
        assert [file.name for file in files] == [f"{name}.png" for name in names]
        for file, own in zip(files, expected, strict=True):
            assert file.read_bytes() == own.read_bytes()


def test_a_photo_that_cannot_be_drawn_is_reported_and_the_others_are_drawn(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "photo1.01-a.png").mkdir()  # in the way of a file
    drawer = Drawer(settings(tmp_path / "out"))
    for number, drawn in ((0, 3), (1, 1), (2, 3)):
        files, problem = drawer.begin(drawing(number))()
        assert len(files) == drawn
        assert (problem is None) == (drawn == 3)
        assert problem is None or "photo1.01-a.png" in problem
