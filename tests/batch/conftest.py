"""A small collection, and the command on it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import types
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import tiny
from batch_tools import PHOTOS

from captioner.batch import local
from captioner.batch.shard import Job, ShardWorker


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


@pytest.fixture
def batch(model: Path) -> Callable[..., int]:
    """Run `captioner batch` in this process, with two workers and shards of ten photos."""
    from captioner.cli.batch import main

    def run(source: object, output: object, *options: object) -> int:
        arguments = [source, "--output", output, "--checkpoint", model, "--device", "cpu"]
        arguments += ["--workers", 2, "--shard-size", 10, *options]
        return main([str(argument) for argument in arguments])

    return run


class ThreadAsWorker:
    """A worker that is a thread of this process: what it needs of PyTorch is imported already."""

    exitcode = 1

    def __init__(self, target: object, args: tuple[Connection, Job, int]) -> None:
        connection, self.job, _ = args
        self.connection = Connection(os.dup(connection.fileno()))
        self.thread = threading.Thread(target=self.work)

    def start(self) -> None:
        self.thread.start()

    def work(self) -> None:
        with self.connection as connection, contextlib.suppress(EOFError):
            worker = ShardWorker(self.job)
            connection.send(None)
            while True:
                connection.send(worker.run(connection.recv()))

    def join(self) -> None:
        self.thread.join()

    kill = join


@pytest.fixture
def threads_as_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For tests of what workers say and write with PyTorch, which takes seconds to import."""
    import torch

    threads = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # by a worker
    context = types.SimpleNamespace(Pipe=multiprocessing.Pipe, Process=ThreadAsWorker)
    monkeypatch.setattr(local, "worker_context", lambda engine: context)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def undisturbed(collection: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a run of the collection that nothing disturbed."""
    from captioner.cli.batch import main

    output = tmp_path_factory.mktemp("undisturbed")
    options = ["--checkpoint", str(model), "--device", "cpu", "--workers", "2"]
    options += ["--shard-size", "10", "--maps"]
    assert main([str(collection), "--output", str(output), *options]) == 1
    return output
