"""Several processes train as one does: the same losses from the same global batches."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from programs import REPOSITORY, TIME_LIMIT_S, ProgramResult, Programs, Running

from captioner.checkpoint import load_model
from captioner.config import to_yaml
from captioner.data.dataset import CaptionBatches, EncodedCaptions

# Dropout draws by process, so that equality between numbers of processes needs it to be 0.
STILL = {**tiny.NO_DROPOUT, "train__checkpoint_every": 0}
HARD = {"attention__select": "hard"}
RunOf = Callable[[str, int], Path]
RECIPES: dict[str, dict[str, Any]] = {
    "teacher": {"train__epochs": 1},
    "soft": {"loss__label_smoothing": 0.1, "optim__accumulate": 1},
    "fine-tuned": {"encoder__trainable_from": "layer4", "data__batch_by": "length"},
    "accumulated": {"optim__accumulate": 3},
    "fixed shapes": {**HARD, "train__compile": "inductor"},
    "fixed shapes, few photos": {"train__compile": "inductor", "data__batch_size": 2},
    "moving average": {**HARD, "hard__baseline": "moving_average", "hard__credit": "caption"},
    "leave one out": {**HARD, "hard__baseline": "leave_one_out", "hard__samples": 3},
    "hard transformer": {**HARD, "decoder__kind": "transformer", "decoder__heads": 2},
    "self-critical": {"self_critical__samples": 2, "optim__lr": 1e-3},
    "greedy": {
        "self_critical__samples": 1,
        "self_critical__baseline": "greedy",
        "data__batch_size": 2,  # fewer photos than processes now and then
    },
    "sources": {},
    "self-critical sources": {"self_critical__samples": 2},
    "taught": {"loss__distillation": 0.5, "loss__attention_distillation": 0.5},
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def worlds(count: int = 2) -> list[dict[str, str]]:
    """The environment of each process of a run, as torchrun sets it."""
    world = {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    world["WORLD_SIZE"] = str(count)
    return [{**world, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def start(
    programs: Programs, count: int, run: Path, changes: dict[str, Any], root: Path
) -> list[Running]:
    """Start so many processes of ranks.py."""
    given = ("tests/training/ranks.py", root, run, json.dumps(changes))
    return [programs.start(*given, **world) for world in worlds(count)]


def finish(running: list[Running]) -> list[ProgramResult]:
    results = [each.wait() for each in running]
    assert {result.code for result in results} == {0}, results
    return results


def changes_of(name: str, table: Path, teacher: Path) -> dict[str, Any]:
    changes = {**STILL, **RECIPES[name]}
    if name == "taught":
        changes |= {"loss__teachers": [str(teacher)], "train__start_from": str(teacher)}
    if "sources" in name:
        one = {"format": "table", "root": str(table), "name": "one", "loss_weight": 0.25}
        changes["data__sources"] = [one, {**one, "name": "two", "loss_weight": 2.0, "weight": 0.5}]
    return changes


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.draw_table(tmp_path_factory.mktemp("table"), train=13)


@pytest.fixture(scope="module")
def run_of(programs: Programs, table: Path, tmp_path_factory: pytest.TempPathFactory) -> RunOf:
    """Return the folder of a recipe's run in so many processes, which is made once."""
    folder = tmp_path_factory.mktemp("runs")

    def made(name: str, count: int) -> Path:
        run = folder / f"{name}-{count}"
        if not run.exists():
            teacher = made("teacher", 1) / "best" if name == "taught" else folder
            finish(start(programs, count, run, changes_of(name, table, teacher), table))
        return run

    return made


@pytest.mark.parametrize(
    "name", [n if n == "soft" else pytest.param(n, marks=pytest.mark.slow) for n in RECIPES]
)
def test_two_processes_have_the_losses_and_weights_of_one(run_of: RunOf, name: str) -> None:
    one, two = (run_of(name, count) for count in (1, 2))
    assert len(tiny.log_entries(one, "train")) >= 3
    for kind, rel in (("train", 1e-9), ("validation", 1e-5)):
        of_both = (tiny.log_entries(run, kind) for run in (one, two))
        for ours, theirs in zip(*of_both, strict=True):
            assert theirs == pytest.approx(ours, rel=rel, abs=1e-12), name
    first, second = (load_model(run / "last")[0].state_dict() for run in (one, two))
    for key, value in first.items():  # model folders hold float32
        torch.testing.assert_close(second[key], value, rtol=1e-6, atol=1e-8, msg=key)


def test_a_batch_is_shared_by_views() -> None:
    generator = np.random.default_rng(3)
    image_of = np.sort(generator.integers(0, 9, 40))
    captions = EncodedCaptions(image_of, [np.array([4, 2])] * 40, np.full(40, 2))
    batches = CaptionBatches(captions, batch_size=16, by="photo", seed=1)
    for entries in [*batches.epoch(0), generator.permutation(80)[:30]]:  # with second views
        shares = [batches.share(entries, process, 3) for process in range(3)]
        assert sorted(np.concatenate(shares)) == sorted(entries)
        views = [
            {(int(image_of[e % 40]), int(e // 40)) for e in share.tolist()} for share in shares
        ]
        assert len(set.union(*views)) == sum(map(len, views))
        assert max(map(len, views)) - min(map(len, views)) <= 1
    assert batches.share(np.array([3]), 1, 2).size + batches.share(np.array([3]), 0, 2).size == 1


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(2, 1), (1, 2), (2, 3)], ids=str)
def test_a_run_goes_on_with_another_number_of_processes(
    programs: Programs, table: Path, tmp_path: Path, counts: tuple[int, int]
) -> None:
    changes = {**changes_of("moving average", table, table), "optim__schedule": "constant"}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    finish(start(programs, 1, whole, changes, table))
    finish(start(programs, counts[0], parts, {**changes, "train__epochs": 1}, table))
    finish(start(programs, counts[1], parts, {**changes, "resume": True}, table))
    # A checkpoint keeps the weights in float32.
    for ours, theirs in zip(
        tiny.log_entries(whole, "train"), tiny.log_entries(parts, "train"), strict=True
    ):
        assert theirs == pytest.approx(ours, rel=1e-5, abs=1e-7)


def test_a_mistake_of_one_process_alone_ends_all_and_is_reported_once(
    programs: Programs, table: Path, tmp_path: Path
) -> None:
    """As on a machine that lacks the data, while the others go on to exchange tensors."""
    write_recipes(table, tmp_path, "run")
    options = ("train.py", "--config", tmp_path / "run.yaml", "--data.root")
    roots = (table, tmp_path / "missing")
    pairs = zip(roots, worlds(), strict=True)
    running = [programs.start(*options, root, **world) for root, world in pairs]
    first, second = (each.wait() for each in running)
    assert str(tmp_path / "missing") in second.sentence()
    assert first.code == 2
    assert "missing" not in first.stderr


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_of_a_killed_fellow_a_user_sees_one_sentence_and_no_frames(
    killed: int, table: Path, tmp_path: Path
) -> None:
    """As users start it: what torch's C++ code writes is decided when torch is imported."""
    write_recipes(table, tmp_path, "run")
    command = [sys.executable, "train.py", "--config", tmp_path / "run.yaml", "--train.epochs=99"]
    running = []
    for world in worlds():
        environment = {**os.environ, **world}
        with (tmp_path / world["RANK"]).open("w") as said:
            running.append(subprocess.Popen(command, cwd=REPOSITORY, env=environment, stderr=said))
    end_s = time.monotonic() + TIME_LIMIT_S
    try:
        while not (tmp_path / "run" / "last").exists() and time.monotonic() < end_s:
            time.sleep(0.01)
        running[killed].kill()
        code = running[1 - killed].wait(TIME_LIMIT_S)
    finally:
        for each in running:
            each.kill()
            each.wait()
    said = (tmp_path / str(1 - killed)).read_text()
    assert code == 2, said
    errors = [line for line in said.splitlines() if not line.startswith("epoch")]
    assert "another process of this run ended" in errors[-1], said
    for word in ("frame #", "c10d", "Exception raised", "Traceback", ".cpp", ".cc:"):
        assert word not in said
    if killed == 0:  # the other one reports nothing else
        assert len(said.splitlines()) == 1, said


def start_recipe(programs: Programs, recipe: Path, *options: str) -> list[Running]:
    """Start the command in two processes."""
    return [programs.start("train.py", "--config", recipe, *options, **world) for world in worlds()]


def write_recipes(table: Path, folder: Path, *names: str) -> None:
    """Write a recipe NAME.yaml for each run folder NAME."""
    changed = {"train__epochs": 8, "optim__accumulate": 1, "train__checkpoint_every": 3}
    for name in names:
        recipe = tiny.recipe(table, folder / name, attention__select="hard", **changed)
        (folder / f"{name}.yaml").write_text(to_yaml(recipe))


@pytest.fixture(scope="module")
def whole(programs: Programs, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    write_recipes(table, folder, "whole")
    finish(start_recipe(programs, folder / "whole.yaml"))
    return folder / "whole"


@pytest.mark.slow
def test_a_signal_to_one_process_ends_all_with_a_checkpoint(
    programs: Programs, table: Path, whole: Path, tmp_path: Path
) -> None:
    write_recipes(table, tmp_path, "run")
    running = start_recipe(programs, tmp_path / "run.yaml")
    log = tmp_path / "run" / "metrics.jsonl"
    running[1].wait_until(lambda: log.exists() and log.read_text().count('"train"') > 4)
    for _ in range(2):  # as from a terminal, and once more from torchrun
        os.kill(running[1].pid, signal.SIGTERM)
        time.sleep(0.02)
    results = [each.wait() for each in running]
    assert [result.code for result in results] == [130, 130], results
    done = len(tiny.log_entries(tmp_path / "run", "train"))
    assert 4 < done < len(tiny.log_entries(whole, "train"))
    resumed = finish(start_recipe(programs, tmp_path / "run.yaml", "--resume"))
    assert not any("Traceback" in result.stderr for result in [*results, *resumed])
    tiny.assert_same_run(tmp_path / "run", whole, "train")


@pytest.mark.slow
def test_a_run_whose_processes_are_killed_ends_bit_for_bit_as_one_that_was_not(
    table: Path, whole: Path, tmp_path: Path
) -> None:
    """Kill -9 of one process three times; torchrun begins again from the last checkpoint."""
    write_recipes(table, tmp_path, "killed")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    torchrun += ["--master-port", str(free_port()), "--max-restarts", "3", "--monitor-interval=0.1"]
    command = [*torchrun, "train.py", "--config", tmp_path / "killed.yaml"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    said = (tmp_path / "said").open("w")
    running = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stderr=said)
    log, killed = tmp_path / "killed" / "metrics.jsonl", 0
    try:
        while running.poll() is None:
            time.sleep(0.01)
            steps = log.read_text().count('"train"') if log.exists() else 0
            if killed < 3 and steps > (killed + 1) * 10:
                children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text()
                os.kill(int(children.split()[killed % 2]), signal.SIGKILL)
                killed += 1
    finally:
        running.kill()
    assert running.returncode == 0, (tmp_path / "said").read_text()
    assert killed == 3
    tiny.assert_same_run(tmp_path / "killed", whole, "train")
