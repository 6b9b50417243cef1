"""Pictures that other processes draw while this one captions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captioner.cli.caption import _parser
from captioner.cli.output import check_output_options
from captioner.cli.output_folder import PROCESSES_FROM, OutputFolder
from captioner.types import Caption, Geometry

Problems = list[tuple[object, object]]


@pytest.fixture
def writer_of() -> Iterator[Callable[..., OutputFolder]]:
    """Makes a writer of sheets and words in a folder, with processes or without."""
    with ExitStack() as stack:

        def make(folder: Path, problems: Problems, photos: int = 1) -> OutputFolder:
            parser = _parser()
            arguments = parser.parse_args(["photo.jpg", "--output", str(folder), "--words"])
            check_output_options(parser, arguments)
            drawn = [Path(f"photo{n}.jpg") for n in range(3)]
            writer = OutputFolder(arguments, drawn, "", lambda *problem: problems.append(problem))
            stack.enter_context(writer.processes(photos))
            return writer

        yield make


def begin(writer: OutputFolder, number: int) -> Callable[[], list[Path]]:
    maps = np.random.default_rng(number).dirichlet(np.full(63, 0.3), size=2).reshape(2, 7, 9)
    caption = Caption(
        words=["a", f"dog{number}"],
        maps=maps.astype(np.float32),
        log_probs=np.log(np.array([0.5, 0.2], dtype=np.float32)),
        beta=None,
        geometry=Geometry(40, 30, 0, 0, 40, 30),
    )
    image = Image.new("RGB", (40, 30))
    return writer.draw(Path(f"photo{number}.jpg"), image, [("model", caption)])


def test_processes_draw_the_same_pictures_and_name_their_files(
    writer_of: Callable[..., OutputFolder], tmp_path: Path
) -> None:
    problems: Problems = []
    apart = writer_of(tmp_path / "apart", problems, PROCESSES_FROM)
    here = writer_of(tmp_path / "here", problems)
    waiting = [begin(apart, number) for number in range(3)]
    for number, finish in enumerate(waiting):
        files, expected = finish(), begin(here, number)()
        names = [f"photo{number}.{kind}" for kind in ("attention", "01-a", f"02-dog{number}")]
        assert [file.name for file in files] == [f"{name}.png" for name in names]
        for file, own in zip(files, expected, strict=True):
            assert file.read_bytes() == own.read_bytes()
    assert not problems
