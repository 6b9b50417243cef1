"""Damaged files of model folders and runs, re-signed too: each is used, or refused in one sentence."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
import tiny
from programs import Programs

from captioner.checkpoint import MODELS, add_files

CHUNK = 30  # cases of one process, which has a time limit


@pytest.fixture(scope="module")
def folders(model_with_graphs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from captioner.training import train

    root = tmp_path_factory.mktemp("fuzzed")
    tiny.draw_table(root / "photos", train=4, val=2, test=0)
    shutil.copytree(model_with_graphs, root / "model")
    calibrator = (MODELS / "soft" / "calibrator.json").read_bytes()
    add_files(root / "model", {"calibrator.json": calibrator})
    train(tiny.recipe(root / "photos", root / "run", train__epochs=1))
    hard = {"attention__select": "hard", "hard__baseline": "learned", "hard__samples": 2}
    train(tiny.recipe(root / "photos", root / "state", train__epochs=1, **hard))
    return {name: root / name for name in ("model", "run", "state")}


@pytest.mark.parametrize(
    "count", [12, pytest.param(1050, marks=pytest.mark.slow)], ids=["some", "many"]
)
@pytest.mark.parametrize("what", ["model", "run", "state"])
def test_damaged_folders_are_used_or_refused_in_one_sentence(
    what: str, count: int, folders: dict[str, Path], programs: Programs, tmp_path: Path
) -> None:
    outcomes: Counter[str] = Counter()
    peak_mb = slowest_s = 0.0
    for seed, first in enumerate(range(0, count, CHUNK)):
        cases = min(CHUNK, count - first)
        arguments = (what, folders[what], tmp_path, seed, cases)
        ended = programs.run("tests/fuzz_folders.py", *arguments, OMP_NUM_THREADS="1")
        assert ended.code == 0, ended.stderr[-3000:] + ended.stdout
        found = json.loads(ended.stdout.splitlines()[-1])
        peak_mb = max(peak_mb, found.pop("peak_mb"))
        slowest_s = max(slowest_s, found.pop("slowest_s"))
        outcomes.update(found)
    print({**outcomes, "slowest_s": slowest_s, "peak_mb": peak_mb})
    assert outcomes["refused"] + outcomes["went back"] > count / 10
    assert outcomes["used"] > 0
