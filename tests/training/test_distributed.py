"""Several processes train as one does: the same losses from the same global batches."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from captioner.checkpoint import load_model, load_training_state
from captioner.data.dataset import CaptionBatches, EncodedCaptions
from captioner.training import train

REPOSITORY = Path(__file__).resolve().parents[2]
# Dropout draws by process, so that equality between numbers of processes needs it to be 0.
STILL = {
    "decoder__dropout": 0.0,
    "decoder__embed_dropout": 0.0,
    "encoder__dropout": 0.0,
    "train__checkpoint_every": 0,
}
HARD = {"attention__select": "hard"}
RECIPES: dict[str, dict[str, Any]] = {
    "soft": {"loss__label_smoothing": 0.1, "optim__accumulate": 1},
    "fine-tuned": {"encoder__trainable_from": "layer4", "data__batch_by": "length"},
    "accumulated": {"optim__accumulate": 3},
    "none": {**HARD, "hard__baseline": "none", "hard__samples": 1},
    "moving average": {**HARD, "hard__baseline": "moving_average", "hard__credit": "caption"},
    "leave one out": {**HARD, "hard__baseline": "leave_one_out", "hard__samples": 3},
    "learned": {**HARD, "hard__baseline": "learned", "hard__samples": 1},
    "hard transformer": {**HARD, "decoder__kind": "transformer", "decoder__heads": 2},
    "hard heads": {**HARD, "attention__heads": 2},
    "self-critical": {"self_critical__samples": 2, "optim__lr": 1e-3},
    "greedy": {
        "self_critical__samples": 1,
        "self_critical__baseline": "greedy",
        "data__batch_size": 2,  # fewer photos than processes now and then
    },
    "concepts": {"loss__visual_concepts": 0.5, "text__batch_size": 1, "text__cells": 4},
    "sources": {},
    "self-critical sources": {"self_critical__samples": 2},
    "taught": {"loss__distillation": 0.5},
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.draw_table(tmp_path_factory.mktemp("table") / "photos", train=13)
    lines = [f"{i}#{n}\ta {c} square on a {g} field" for i, c in enumerate(("red", "blue", "green"))
             for n, g in enumerate(("red", "green", "blue"))]  # fmt: skip
    (folder / "texts.tsv").write_text("\n".join(lines))
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(
    count: int, runs: Sequence[tuple[Path, dict[str, Any]]], root: Path, kind: str = "float64"
) -> list[subprocess.Popen[str]]:
    """Start so many processes of ranks.py, as torchrun would."""
    listed = [(str(run), changes, free_port()) for run, changes in runs]
    plan = runs[0][0].parent / f"{runs[0][0].name}-{count}.json"
    plan.write_text(json.dumps(listed))
    environment = {
        **os.environ,
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}",
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "WORLD_SIZE": str(count),
    }
    return [
        subprocess.Popen(
            [sys.executable, Path(__file__).with_name("ranks.py"), root, kind, plan],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]


def finish(processes: list[subprocess.Popen[str]], codes: set[int] | None = None) -> list[str]:
    try:
        said = [process.communicate(timeout=500)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert {process.returncode for process in processes} <= (codes or {0}), "\n".join(said)
    return said


def losses(run: Path, kind: str = "train") -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if k not in ("data_wait", "step_s", "kind")}
        for line in lines
        if line["kind"] == kind
    ]


def changes_of(name: str, table: Path, teacher: Path) -> dict[str, Any]:
    changes = {**STILL, **RECIPES[name]}
    if name == "concepts":
        changes["text__file"] = str(table / "texts.tsv")
    if name == "taught":
        changes |= {"loss__teachers": [str(teacher)], "train__start_from": str(teacher)}
    if "sources" in name:
        one = {"format": "table", "root": str(table), "name": "one", "loss_weight": 0.25}
        two = {**one, "name": "two", "loss_weight": 2.0, "weight": 0.5, "style": "other"}
        changes["data__sources"] = [one, {**two, "style": None} if "critical" in name else two]
    return changes


@pytest.fixture(scope="module")
def runs(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each recipe trained in 1, 2 and 3 processes: run folders NAME-COUNT."""
    folder = tmp_path_factory.mktemp("runs")
    teacher = folder / "teacher"
    torch.set_num_threads(1)
    train(tiny.recipe(table, teacher, train__epochs=1))
    for count in (1, 2, 3):
        names = RECIPES if count < 3 else ("soft", "moving average", "greedy")
        finish(
            start(
                count,
                [(folder / f"{n}-{count}", changes_of(n, table, teacher / "best")) for n in names],
                table,
            )
        )
    return folder


@pytest.mark.parametrize("name", RECIPES)
def test_two_processes_have_the_losses_and_weights_of_one(runs: Path, name: str) -> None:
    one, two = (runs / f"{name}-{count}" for count in (1, 2))
    assert len(losses(one)) >= 5
    for ours, theirs in zip(losses(one), losses(two), strict=True):
        assert theirs == pytest.approx(ours, rel=1e-9, abs=1e-12), name
    for ours, theirs in zip(losses(one, "validation"), losses(two, "validation"), strict=True):
        assert theirs == pytest.approx(ours, rel=1e-5)
    first, second = (load_model(run / "last")[0].state_dict() for run in (one, two))
    for key, value in first.items():  # model folders hold float32
        torch.testing.assert_close(second[key], value, rtol=1e-6, atol=1e-8, msg=key)


@pytest.mark.parametrize("name", ["soft", "moving average", "greedy"])
def test_three_processes_have_them_too(runs: Path, name: str) -> None:
    for ours, theirs in zip(losses(runs / f"{name}-1"), losses(runs / f"{name}-3"), strict=True):
        assert theirs == pytest.approx(ours, rel=1e-9, abs=1e-12)


def test_the_recipes_differ_from_each_other(runs: Path) -> None:
    """Or the equalities above would show little."""
    totals = {name: losses(runs / f"{name}-1")[-1]["total"] for name in RECIPES}
    assert len(set(totals.values())) == len(totals), totals


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
        assert not (views[0] & views[1] or views[0] & views[2] or views[1] & views[2])
        assert max(map(len, views)) - min(map(len, views)) <= 1
    assert batches.share(np.array([3]), 1, 2).size + batches.share(np.array([3]), 0, 2).size == 1


def test_a_run_goes_on_with_another_number_of_processes(runs: Path, table: Path) -> None:
    changes = changes_of("moving average", table, table)
    run = runs / "changed"
    finish(start(2, [(run, {**changes, "train__epochs": 1})], table))
    finish(start(1, [(run, {**changes, "resume": True})], table))
    whole = losses(runs / "moving average-1")
    # The schedule of one epoch is another one; after it, the second epoch goes on.
    assert [each["step"] for each in losses(run)] == [each["step"] for each in whole]
    again = runs / "changed again"
    constant = {**changes, "optim__schedule": "constant"}
    finish(start(2, [(again, {**constant, "train__epochs": 1})], table))
    finish(start(3, [(again, {**constant, "resume": True})], table))
    finish(start(1, [(runs / "undisturbed", constant)], table))
    # A checkpoint keeps the weights in float32.
    for ours, theirs in zip(losses(runs / "undisturbed"), losses(again), strict=True):
        assert theirs == pytest.approx(ours, rel=1e-5, abs=1e-7)


def test_a_mistake_is_reported_once(table: Path, tmp_path: Path) -> None:
    said = finish(start(2, [(tmp_path / "run", {"data__min_count": 1000})], table), codes={1, 2})
    assert sum("no word occurs 1000 times" in each.splitlines()[-1] for each in said if each) == 1
