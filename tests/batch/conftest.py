"""A small collection, and the command on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
from batch_tools import PHOTOS


@pytest.fixture(scope="session")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos in two folders, and one file that is none: `b/broken.jpg`."""
    folder = tmp_path_factory.mktemp("collection")
    for number in range(PHOTOS):
        path = folder / "ab"[number % 2] / f"{number:03d}.png"
        path.parent.mkdir(exist_ok=True)
        tiny.photo(number)[0].save(path)
    (folder / "b" / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing")
    (folder / "b" / "notes.txt").write_text("not a photo")
    (folder / ".hidden.png").write_bytes(b"")
    return folder


@pytest.fixture(scope="session")
def model(model_with_graphs: Path) -> Path:
    """The tiny model with graphs, so that nothing needs PyTorch."""
    return model_with_graphs


@pytest.fixture(scope="session")
def batch(model: Path) -> Callable[..., int]:
    """Run `captioner batch` in this process, with shards of ten photos."""
    from captioner.cli.batch import batch as main

    def run(source: object, output: object, *options: object) -> int:
        arguments = [source, "--output", output, "--checkpoint", model, "--device", "cpu"]
        arguments += ["--workers", 1, "--shard-size", 10, *options]
        return main([str(argument) for argument in arguments])

    return run


@pytest.fixture(scope="session")
def undisturbed(
    batch: Callable[..., int], collection: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The output of a run of the collection that nothing disturbed."""
    output = tmp_path_factory.mktemp("undisturbed")
    assert batch(collection, output, "--maps") == 1
    return output
