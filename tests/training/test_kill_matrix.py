"""Runs killed before each kind of file operation end, once resumed, as one that nobody killed.

The operations are those of loading, caching, stepping, validating and checkpointing: photos and
captions are read, features, checkpoints, logs and samples written, folders renamed. Every run is
killed, started again as a user would (with --resume where there is a checkpoint), and compared bit
for bit. Some kills by default; with `-m slow` a hundred and more.
"""

from __future__ import annotations

import json
import random
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import tiny
from programs import ProgramResult, Programs, Running

from captioner.checkpoint import CHECKPOINTS, verify
from captioner.config import to_yaml

TWO_RANKS = "two ranks"  # hard attention in two processes that share each batch
# Of every kind a few settings over those of tiny.recipe.
KINDS: dict[str, dict[str, object]] = {
    "soft, cached": {"data__cache": "cache", "data__cache_views": 2, "train__samples": 1},
    "soft, no checkpoint in an epoch": {"train__checkpoint_every": 0},
    "hard": {"attention__select": "hard", "loss__doubly_stochastic": 0.0},
    "self-critical": {"self_critical__samples": 2, "loss__doubly_stochastic": 0.0},
    TWO_RANKS: {"attention__select": "hard", "train__samples": 1},
}
QUICK = ("soft, cached",)  # kinds of which a kill is tried by default
KILLS, MANY_KILLS = 1, 26  # of each kind
OPERATIONS_OF_SECOND = 20  # so many or more: photos that the second process reads


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.draw_table(tmp_path_factory.mktemp("killed") / "photos", train=6, val=2, test=0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Ranks:
    """Two processes, of which the second may be the one to be killed."""

    def __init__(self, running: list[Running], killed: int) -> None:
        self.running, self.killed = running, killed

    def wait(self) -> ProgramResult:
        """Return how the killed one ended (else the first); end the other then, as torchrun does."""
        ended = self.running[self.killed].wait()
        other = self.running[1 - self.killed]
        if ended.code:  # the other may be through: only the first writes at the end
            other.signal(signal.SIGKILL)
            other.wait()
        else:
            assert other.wait().code == 0, ended
        return ended


def start(
    programs: Programs,
    folder: Path,
    table: Path,
    kind: str,
    kill_before: int,
    *,
    graphs: bool = True,
) -> Running | Ranks:
    """Begin the run in `folder`, or go on with it.

    `graphs`: the model gets graphs at the end, which takes most of a run's time. Of the processes of
    torchrun the first alone adds them, so another does not.
    """
    folder.mkdir(exist_ok=True)
    file, run = folder / "recipe.yaml", folder / "run"
    changed = {"train__checkpoint_every": 1, **KINDS[kind]}
    if "data__cache" in changed:
        changed["data__cache"] = str(folder / "cache")
    file.write_text(to_yaml(tiny.recipe(table, run, **changed)))
    resume = ["--resume"] if any((run / name).exists() for name in CHECKPOINTS) else []
    watched, command = str(table.parent.parent), ("train", "--config", file, *resume)

    def begin(place: int, name: str, **environment: str) -> Running:
        counted = (place, watched, folder / name)
        return programs.start("tests/kill_before.py", *counted, *command, **environment)

    if kind != TWO_RANKS:
        return begin(kill_before, "count", **({} if graphs else {"RANK": "1"}))
    # The second process reads photos but writes nothing, so it has fewer operations.
    killed = kill_before % 2
    places = [kill_before, 0] if not killed else [0, 1 + kill_before % OPERATIONS_OF_SECOND]
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    running = [
        begin(place, name, RANK=rank, LOCAL_RANK=rank, OMP_NUM_THREADS="1", **world)
        for place, name, rank in zip(places, ("count", "second"), "01", strict=True)
    ]
    return Ranks(running, killed)


def results(folder: Path) -> dict[str, object]:
    """What must be the same."""
    run = folder / "run"
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    log = [
        {
            key: value
            for key, value in json.loads(line).items()
            if key not in ("data_wait", "step_s")
        }
        for line in lines
    ]
    samples = {path.name: path.read_bytes() for path in sorted(run.glob("samples/*/*"))}
    for name in ("last", "previous", "best"):
        verify(run / name)
    weights = {name: (run / name / "model.safetensors").read_bytes() for name in ("last", "best")}
    leftover = sorted(path.name for path in run.rglob(".*") if path.name != ".lock")
    return {"log": log, "samples": samples, "weights": weights, "leftover": leftover}


@pytest.fixture(scope="module")
def whole(
    table: Path, programs: Programs
) -> Any:  # a function from a kind to the results of its run, and its number of operations
    known: dict[tuple[str, bool], tuple[dict[str, object], int]] = {}

    def find(kind: str, graphs: bool = True) -> tuple[dict[str, object], int]:
        if (kind, graphs) not in known:
            folder = table.parent / f"whole {kind} {graphs}"
            ended = start(programs, folder, table, kind, 0, graphs=graphs).wait()
            assert ended.code == 0, ended.stderr
            known[kind, graphs] = results(folder), int((folder / "count").read_text())
        return known[kind, graphs]

    return find


@pytest.mark.parametrize(
    ("kind", "kills"),
    [(kind, KILLS) for kind in QUICK]
    + [pytest.param(kind, MANY_KILLS, marks=pytest.mark.slow) for kind in KINDS],
)
def test_a_killed_run_ends_as_one_that_was_not(
    kind: str, kills: int, whole: Any, table: Path, programs: Programs
) -> None:
    graphs = kills > KILLS  # of few kills, none comes while the graphs are written
    expected, operations = whole(kind, graphs)
    assert operations > 100
    # At random, but the same ones each time, within equal parts of the run.
    generator = random.Random(kind)
    part = operations / kills
    places = [1 + int((n + generator.random()) * part) for n in range(kills)]
    for place in sorted(set(places)):
        folder = table.parent / f"{kind} {kills} {place}"
        killed = start(programs, folder, table, kind, place, graphs=graphs).wait()
        assert killed.code == -signal.SIGKILL, (place, killed)
        ended = start(programs, folder, table, kind, 0, graphs=False).wait()
        assert ended.code == 0, f"killed before operation {place} of {operations}: {ended.stderr}"
        assert results(folder) == expected, f"killed before operation {place} of {operations}"


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_too(whole: Any, table: Path, programs: Programs) -> None:
    expected, operations = whole("hard")
    folder = table.parent / "again and again"
    for place in (operations // 3, operations // 3, operations // 3, operations // 2):
        killed: ProgramResult = start(programs, folder, table, "hard", place).wait()
        assert killed.code in (-signal.SIGKILL, 0), killed
    ended: ProgramResult = start(programs, folder, table, "hard", 0).wait()
    assert ended.code == 0, ended.stderr
    assert results(folder) == expected
