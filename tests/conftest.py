"""Fixtures of all tests: data, small models, programs and a browser; skips for missing tools."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
import tiny
from chromium import chromium
from filelock import FileLock
from programs import Commands, Programs, program_server, read_translations_once

from captioner.log import logger

# Set before the first import of torch and matplotlib, and seen by programs that tests start: small
# tensors are slower on many threads than on two, where tests run in parallel one is enough, and no
# test may open a display.
os.environ.setdefault("OMP_NUM_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else "2")
os.environ.setdefault("MPLBACKEND", "Agg")

gc.disable()  # until all is imported

REPOSITORY = Path(__file__).resolve().parents[1]
PROGRAM_SERVER = "CAPTIONER_PROGRAM_SERVER"  # its address, for xdist's workers

# The files that take longest, begun first: at the end no worker of pytest-xdist waits for another.
LONGEST = (
    "batch/test_batch.py",
    "cli/test_train_command.py",
    "training/test_distributed.py",
    "evaluation/test_metrics.py",
    "cli/test_serve_command.py",
    "cli/test_caption_command.py",
    "engines/test_graphs.py",
    "training/test_capture.py",
    "training/test_trainer.py",
    "test_config.py",
    "test_checkpoint.py",
    "cli/test_evaluate_command.py",
    "serving/test_web_page.py",
    "visualization/test_viewer.py",
    "generation/test_fixed_shapes.py",
    "training/test_run.py",
    "models/decoders/test_families.py",
    "engines/test_without_torch.py",
    "test_docs.py",
    "visualization/test_sheet.py",
)


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # by which xdist begins with the files of most tests
    if config.getoption("dist", "no") != "no":  # the process that starts xdist's workers
        server = ExitStack()
        os.environ[PROGRAM_SERVER] = server.enter_context(program_server())
        config.add_cleanup(server.close)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {REPOSITORY / "tests" / name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(LONGEST)))


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()  # or torch's half a million objects are searched for garbage again and again
    atexit.register(gc.unfreeze)  # or nanobind, in Triton, calls all of that leaked
    gc.set_threshold(20_000, 20, 50)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("java") and shutil.which("java") is None:
        # A metric that silently goes untested is how a wrong METEOR gets published.
        if os.environ.get("CI"):
            pytest.fail("needs Java, and where CI is set its absence is a failure", pytrace=False)
        pytest.skip("needs Java: no `java` on the path")
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Leave the log as it was, whatever --quiet or --verbose a command was given."""
    before = logger.level
    yield
    logger.setLevel(before)


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """What a process wrote outlives it without fsync, which waits milliseconds for each file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real photos and captions: CAPTIONER_DATA, or ../shared/data by the repository."""
    named = os.environ.get("CAPTIONER_DATA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        if named:
            pytest.fail(f"CAPTIONER_DATA names {folder}, which is no folder", pytrace=False)
        pytest.skip("needs real photos: set CAPTIONER_DATA to their folder")
    return folder


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Starts our command line programs."""
    shared = os.environ.get(PROGRAM_SERVER)
    with nullcontext(shared) if shared else program_server() as address:
        yield Programs(tmp_path_factory.mktemp("programs"), address)


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """Runs our commands in this process, where no promise about a process is tested."""
    return Commands(tmp_path_factory.mktemp("commands"))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with random weights: 64 x 96 px, a grid of 2 x 3, twelve words."""
    from captioner.checkpoint_writer import save_model

    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_model(folder, *tiny.model(), card="# A tiny model\n")
    return folder


@pytest.fixture(scope="session")
def fast_export() -> None:
    """Exports to ONNX take two thirds of the time."""
    read_translations_once()


@pytest.fixture(scope="session")
def model_with_graphs(
    fast_export: None, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The tiny model with graphs; made once for all processes of the tests, because it takes seconds."""
    from captioner.export import export_graphs

    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # of the folders of all processes
    folder = root / "tiny_with_graphs"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            making = Path(shutil.copytree(tiny_model, f"{folder}.making"))
            export_graphs(making)
            making.rename(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_hard_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with hard attention."""
    from captioner.checkpoint_writer import save_model

    folder = tmp_path_factory.mktemp("models") / "tiny_hard"
    save_model(folder, *tiny.model(select="hard"), card="# A tiny model\n")
    return folder


@pytest.fixture(scope="session")
def drawn_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of drawn photos with the table of their captions: see tiny.draw_table."""
    return tiny.draw_table(tmp_path_factory.mktemp("drawn"))


@pytest.fixture
def in_float64() -> Iterator[None]:
    import torch

    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# Not for the session: while it runs, so does an event loop in this thread.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running
